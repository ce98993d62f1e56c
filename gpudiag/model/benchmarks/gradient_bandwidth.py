"""Define plan and results of measuring all-reduces of one model's gradient buckets (`gpudiag bandwidth --like`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.facts import Collective
from gpudiag.model.quantities import Bytes

GRADIENT_BANDWIDTH_SCHEMA = "gpudiag/gradient-bandwidth/1"
GRADIENT_BANDWIDTH_FILE = "gradient-bandwidth.json"


class GradientBandwidthPlan(msgspec.Struct, frozen=True, kw_only=True, tag="gradient-bandwidth"):
    """The transports that a set of processes measures, and the message sizes in bytes, ascending.

    `transports` maps each transport to a strategy that communicates over the transport.
    """

    device: Literal["cuda", "cpu"]
    transports: dict[str, Candidate]
    sizes: tuple[Bytes, ...]


class GradientBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Measured all-reduces, with the times of the slowest rank."""

    schema: str = GRADIENT_BANDWIDTH_SCHEMA
    collectives: tuple[Collective, ...]


class ModelBuckets(msgspec.Struct, frozen=True, kw_only=True):
    """A model's gradient buckets in the order of communication, and measured all-reduces of these sizes.

    `skipped` maps each transport that could not be measured to the reason.
    """

    workload: str
    bucket_bytes: tuple[Bytes, ...]
    collectives: tuple[Collective, ...]
    skipped: dict[str, str] = {}

    def step_ms(self, transport: str) -> float | None:
        """Return the time in ms to all-reduce all buckets in sequence; None if the transport was not measured."""
        known = sorted(
            (collective.bytes, collective.time_us)
            for collective in self.collectives
            if collective.strategy == transport
        )
        if not known:
            return None
        return sum(_interpolated(known, size) for size in self.bucket_bytes) / 1e3


def _interpolated(known: list[tuple[int, float]], size: int) -> float:
    """Return the time at `size`, interpolated linearly between known (size, time) points.

    Beyond the largest size, the time is in proportion to the size. Below the smallest size, it is the time of the
    smallest size.
    """
    below = max((point for point in known if point[0] <= size), default=known[0])
    above = min((point for point in known if point[0] >= size), default=None)
    if above is None:
        return below[1] * size / below[0]
    if above[0] <= below[0]:
        return below[1]
    return below[1] + (size - below[0]) / (above[0] - below[0]) * (above[1] - below[1])
