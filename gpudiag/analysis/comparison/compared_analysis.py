"""A side of a comparison: an analysis whose figures have been checked, as means over its devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import BUCKETS, Analysis, Device, Portion

Key = tuple[str, str, str, int | None]
"""Bucket, name, group and size of a portion."""
Portions = dict[Key, tuple[float, float]]
"""Key → (milliseconds, calls) per step."""

#: Thirty years in milliseconds. gpudiag wrote no file with a longer step.
_LONGEST_MS = 1e12


@dataclass(frozen=True)
class ComparedAnalysis:
    """An analysis with its means.

    Raises:
        UnreadableInputError: the analysis has no device with a step, or values out of range.
    """

    analysis: Analysis

    def __post_init__(self) -> None:
        name = ", ".join(self.analysis.source.paths) or "the analysis"
        if not self.live:
            raise UnreadableInputError(f"{name}: no device of it has a step to compare")
        if not all(abs(figure) < _LONGEST_MS for figure in _figures(self.analysis)):
            raise UnreadableInputError(f"{name}: has a time that no step takes", "Analyse its traces again.")
        if any(len(portion.device_ms) != len(self.analysis.devices) for portion in self.analysis.portions):
            raise UnreadableInputError(
                f"{name}: its portions are not those of its devices", "Analyse its traces again."
            )

    @cached_property
    def live(self) -> dict[tuple[int, int], tuple[int, Device]]:
        """Devices that have steps: (rank, ordinal among the rank's devices) → (index, device)."""
        live = {}
        seen: Counter[int] = Counter()
        for index, device in enumerate(self.analysis.devices):
            if device.step_ms > 0:
                live[device.rank, seen[device.rank]] = (index, device)
            seen[device.rank] += 1
        return live

    def mean(self, figures: Iterable[float]) -> float:
        """Return the mean of one figure per live device; `fsum`, so that the order of devices does not matter."""
        return fsum(figures) / len(self.live)

    @cached_property
    def step_ms(self) -> float:
        """Mean device window, averaged over the live devices."""
        return self.mean(device.step_ms for _, device in self.live.values())

    @cached_property
    def hidden_ms(self) -> float:
        """Communication during compute, averaged over devices with steps."""
        return self.mean(device.hidden_communication_ms for _, device in self.live.values())

    def bucket_ms(self, bucket: str) -> float:
        """Return one bucket, averaged over devices with steps."""
        return self.mean(device.buckets_ms.get(bucket, 0.0) for _, device in self.live.values())

    @cached_property
    def portions(self) -> Portions:
        """The portions, averaged over the live devices."""
        indices = [index for index, _ in self.live.values()]
        return self._portions(lambda portion: self.mean(portion.device_ms[index] for index in indices))

    def portions_on(self, index: int) -> Portions:
        """Return the portions of one device; calls are the mean over all devices."""
        return self._portions(lambda portion: portion.device_ms[index])

    def _portions(self, portion_ms: Callable[[Portion], float]) -> Portions:
        portions: Portions = {}
        for portion in self.analysis.portions:
            if portion.bucket in BUCKETS:
                key = (portion.bucket, portion.name, portion.group, portion.size_bytes)
                ms, calls = portions.get(key, (0.0, 0.0))
                portions[key] = (ms + portion_ms(portion), calls + portion.per_step)
        return portions


def _figures(analysis: Analysis) -> Iterator[float]:
    """Yield every figure that the comparison uses."""
    for device in analysis.devices:
        yield from (device.step_ms, device.hidden_communication_ms, *device.step_times_ms, *device.buckets_ms.values())
    for portion in analysis.portions:
        yield from (*portion.device_ms, portion.per_step)
    yield from (wait.ms_per_step for wait in analysis.waits)
    steps = analysis.steps
    yield from (*steps.unprofiled_times_ms, steps.unprofiled_mean_ms or 0.0, steps.corrected_mean_ms or 0.0)
