"""One side of a comparison: an analysis whose figures have been checked, as means over its devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import BUCKETS, Analysis, Device, Portion

Key = tuple[str, str, str, int | None]
"""Bucket, name, group and size of what contributes to a bucket."""

#: Thirty years in milliseconds. A file with a longer step was not written by gpudiag.
_LONGEST_MS = 1e12


@dataclass(frozen=True)
class Measured:
    """An analysis, and what a comparison asks of it.

    Raises:
        UnreadableInputError: it has no device with a step, or figures that cannot be.
    """

    analysis: Analysis

    def __post_init__(self) -> None:
        name = ", ".join(self.analysis.source.paths) or "the analysis"
        if not self.live:
            raise UnreadableInputError(f"{name}: no device of it has a step to compare")
        figures = [
            *(device.step_ms for device in self.analysis.devices),
            *(device.hidden_communication_ms for device in self.analysis.devices),
            *(time for device in self.analysis.devices for time in device.step_times_ms),
            *(part for device in self.analysis.devices for part in device.buckets_ms.values()),
            *(share for portion in self.analysis.portions for share in portion.device_ms),
            *(portion.per_step for portion in self.analysis.portions),
            *(wait.ms_per_step for wait in self.analysis.waits),
            *self.analysis.steps.unprofiled_times_ms,
            self.analysis.steps.unprofiled_mean_ms or 0.0,
            self.analysis.steps.corrected_mean_ms or 0.0,
        ]
        if not all(abs(figure) < _LONGEST_MS for figure in figures):
            raise UnreadableInputError(f"{name}: has a time that no step takes", "Analyse its traces again.")
        if any(len(portion.device_ms) != len(self.analysis.devices) for portion in self.analysis.portions):
            raise UnreadableInputError(
                f"{name}: its portions are not those of its devices", "Analyse its traces again."
            )

    @cached_property
    def live(self) -> dict[tuple[int, int], tuple[int, Device]]:
        """Devices that have steps: (rank, how many devices of that rank came before) → (place, device)."""
        found = {}
        seen: dict[int, int] = defaultdict(int)
        for place, device in enumerate(self.analysis.devices):
            key = (device.rank, seen[device.rank])
            seen[device.rank] += 1
            if device.step_ms > 0:
                found[key] = (place, device)
        return found

    def mean(self, figures: Iterable[float]) -> float:
        """The mean of one figure per live device; `fsum`, so that the order of devices does not matter."""
        return fsum(figures) / len(self.live)

    @cached_property
    def step_ms(self) -> float:
        """Mean device window, averaged over the live devices."""
        return self.mean(device.step_ms for _, device in self.live.values())

    @cached_property
    def hidden_ms(self) -> float:
        """Communication beside compute, averaged over the live devices."""
        return self.mean(device.hidden_communication_ms for _, device in self.live.values())

    def bucket_ms(self, bucket: str) -> float:
        """One bucket, averaged over the live devices."""
        return self.mean(device.buckets_ms.get(bucket, 0.0) for _, device in self.live.values())

    @cached_property
    def parts(self) -> dict[Key, tuple[float, float]]:
        """Key → (milliseconds, calls) per step, averaged over the live devices."""
        places = [place for place, _ in self.live.values()]
        return self._parts(lambda portion: self.mean(portion.device_ms[place] for place in places))

    def parts_on(self, place: int) -> dict[Key, tuple[float, float]]:
        """The same of one device; calls are the mean over all devices."""
        return self._parts(lambda portion: portion.device_ms[place])

    def _parts(self, own_ms: Callable[[Portion], float]) -> dict[Key, tuple[float, float]]:
        found: dict[Key, tuple[float, float]] = {}
        for portion in self.analysis.portions:
            if portion.bucket in BUCKETS:
                key = (portion.bucket, portion.name, portion.group, portion.size_bytes)
                ms, calls = found.get(key, (0.0, 0.0))
                found[key] = (ms + own_ms(portion), calls + portion.per_step)
        return found
