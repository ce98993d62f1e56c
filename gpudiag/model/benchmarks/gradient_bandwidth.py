"""All-reduces of one model's own buckets: what `gpudiag bandwidth --like` asks for, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.facts import Collective
from gpudiag.model.quantities import Bytes

GRADIENT_BANDWIDTH_SCHEMA = "gpudiag/gradient-bandwidth/1"
GRADIENT_BANDWIDTH_FILE = "gradient-bandwidth.json"


class GradientBandwidthPlan(msgspec.Struct, frozen=True, kw_only=True, tag="gradient-bandwidth"):
    """What a set of processes is to measure: these transports, with messages of these bytes, rising.

    Each transport comes with a candidate that exchanges over it.
    """

    device: Literal["cuda", "cpu"]
    transports: dict[str, Candidate]
    sizes: tuple[Bytes, ...]


class GradientBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, the slowest rank's times."""

    schema: str = GRADIENT_BANDWIDTH_SCHEMA
    collectives: tuple[Collective, ...]


class ModelBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """A model's buckets, in the order of exchange, and all-reduces of their sizes."""

    workload: str
    bucket_bytes: tuple[Bytes, ...]
    collectives: tuple[Collective, ...]
    skipped: dict[str, str] = {}
    """Transports that could not be measured, and why."""

    def step_ms(self, transport: str) -> float | None:
        """All buckets one after another over a transport, straight lines between measured sizes; None if unknown."""
        known = sorted(
            (collective.bytes, collective.time_us)
            for collective in self.collectives
            if collective.strategy == transport
        )
        if not known:
            return None
        return sum(_between(known, size) for size in self.bucket_bytes) / 1e3


def _between(known: list[tuple[int, float]], size: int) -> float:
    below = max((one for one in known if one[0] <= size), default=known[0])
    above = min((one for one in known if one[0] >= size), default=None)
    if above is None:
        return below[1] * size / below[0]
    if above[0] <= below[0]:
        return below[1]
    return below[1] + (size - below[0]) / (above[0] - below[0]) * (above[1] - below[1])
