"""Compute the changes between two analyses: of buckets and portions, of ranks, of waits, and of source lines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import fsum

from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import BUCKETS, Analysis, Device, Portion
from gpudiag.model.diff import BucketChange, LineChange, PartChange, RankChange, WaitChange

#: Bucket, name, group and size in bytes of a portion.
Key = tuple[str, str, str, int | None]
#: Key → (milliseconds, calls) per step.
Portions = dict[Key, tuple[float, float]]

#: Thirty years in milliseconds. A file with a longer step is damaged.
_LONGEST_MS = 1e12
#: Maximum number of portions in a rank's change, largest changes first, to keep the file small.
MOST_PARTS = 5


@dataclass(frozen=True)
class ComparedAnalysis:
    """An analysis, and the means of its figures over devices.

    Devices with steps are called live; other devices are left out.

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
        """Return (rank, index among the rank's devices) → (index among all devices, device), for live devices."""
        live = {}
        seen: Counter[int] = Counter()
        for index, device in enumerate(self.analysis.devices):
            if device.step_ms > 0:
                live[device.rank, seen[device.rank]] = (index, device)
            seen[device.rank] += 1
        return live

    def mean(self, figures: Iterable[float]) -> float:
        """Return the mean of `figures`, which has one figure for each live device."""
        # Unlike `sum`, the rounding of `fsum` does not depend on the order of devices.
        return fsum(figures) / len(self.live)

    @cached_property
    def step_ms(self) -> float:
        """Return the mean length of a step in ms, averaged over the live devices."""
        return self.mean(device.step_ms for _, device in self.live.values())

    @cached_property
    def hidden_ms(self) -> float:
        """Return the time of communication during compute in ms per step, averaged over the live devices."""
        return self.mean(device.hidden_communication_ms for _, device in self.live.values())

    def bucket_ms(self, bucket: str) -> float:
        """Return the time of one bucket in ms per step, averaged over the live devices."""
        return self.mean(device.buckets_ms.get(bucket, 0.0) for _, device in self.live.values())

    @cached_property
    def portions(self) -> Portions:
        """Return the portions, averaged over the live devices."""
        indices = [index for index, _ in self.live.values()]
        return self._portions(lambda portion: self.mean(portion.device_ms[index] for index in indices))

    def portions_on(self, index: int) -> Portions:
        """Return the portions of one device; their calls per step are means over all devices."""
        return self._portions(lambda portion: portion.device_ms[index])

    def _portions(self, portion_ms: Callable[[Portion], float]) -> Portions:
        """Return key → (milliseconds by `portion_ms`, calls per step), summed over portions with equal keys."""
        portions: Portions = {}
        for portion in self.analysis.portions:
            if portion.bucket in BUCKETS:
                key = (portion.bucket, portion.name, portion.group, portion.size_bytes)
                ms, calls = portions.get(key, (0.0, 0.0))
                portions[key] = (ms + portion_ms(portion), calls + portion.per_step)
        return portions


def _figures(analysis: Analysis) -> Iterator[float]:
    """Yield every figure that the comparison reads."""
    for device in analysis.devices:
        yield from (device.step_ms, device.hidden_communication_ms, *device.step_times_ms, *device.buckets_ms.values())
    for portion in analysis.portions:
        yield from (*portion.device_ms, portion.per_step)
    yield from (wait.ms_per_step for wait in analysis.waits)
    steps = analysis.steps
    yield from (*steps.unprofiled_times_ms, steps.unprofiled_mean_ms or 0.0, steps.corrected_mean_ms or 0.0)


def bucket_changes(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[BucketChange, ...]:
    """Return the changes of all eight buckets, with the changes of portions if both analyses have portions."""
    changes = []
    portions = _portion_changes(before.portions, after.portions) if _both_have_portions(before, after) else ()
    for bucket in BUCKETS:
        old, new = before.bucket_ms(bucket), after.bucket_ms(bucket)
        parts = tuple(portion for portion in portions if portion.bucket == bucket)
        changes.append(
            BucketChange(
                bucket=bucket,
                before_ms=old,
                after_ms=new,
                difference_ms=new - old,
                parts=parts,
                rest_ms=fsum([new - old, *(-part.difference_ms for part in parts)]),
            )
        )
    return tuple(changes)


def rank_changes(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[RankChange, ...]:
    """Return the change of each device that both runs have, by rank."""
    both = _both_have_portions(before, after)
    changes = []
    for key in sorted(before.live.keys() & after.live.keys()):
        (old_index, old), (new_index, new) = before.live[key], after.live[key]
        buckets = {bucket: new.buckets_ms.get(bucket, 0.0) - old.buckets_ms.get(bucket, 0.0) for bucket in BUCKETS}
        difference = new.step_ms - old.step_ms
        parts = _portion_changes(before.portions_on(old_index), after.portions_on(new_index)) if both else ()
        changes.append(
            RankChange(
                rank=new.rank,
                device=new.device,
                before_ms=old.step_ms,
                after_ms=new.step_ms,
                difference_ms=difference,
                buckets_ms=buckets,
                unattributed_ms=fsum([difference, *(-change for change in buckets.values())]),
                parts=parts[:MOST_PARTS],
            )
        )
    return tuple(changes)


def wait_changes(before: Analysis, after: Analysis) -> tuple[WaitChange, ...]:
    """Return the changes of waits between ranks that both runs have, largest difference first."""
    common = set(before.ranks_present) & set(after.ranks_present)
    waits: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, analysis in enumerate((before, after)):
        for wait in analysis.waits:
            if {wait.rank, wait.on_rank} <= common:
                waits[wait.rank, wait.on_rank][side] += wait.ms_per_step
    changes = [
        WaitChange(rank=rank, on_rank=on_rank, before_ms=old, after_ms=new, difference_ms=new - old)
        for (rank, on_rank), (old, new) in waits.items()
    ]
    return tuple(sorted(changes, key=lambda wait: (-abs(wait.difference_ms), wait.rank, wait.on_rank)))


def _both_have_portions(before: ComparedAnalysis, after: ComparedAnalysis) -> bool:
    return bool(before.analysis.portions and after.analysis.portions)


def _portion_changes(before: Portions, after: Portions) -> tuple[PartChange, ...]:
    """Return the change of each portion, largest difference first. A portion that one side lacks counts as 0 ms."""
    changes = []
    for key in before.keys() | after.keys():
        bucket, name, group, size_bytes = key
        (old_ms, old_calls), (new_ms, new_calls) = before.get(key, (0.0, 0.0)), after.get(key, (0.0, 0.0))
        changes.append(
            PartChange(
                bucket=bucket,
                name=name,
                group=group,
                size_bytes=size_bytes,
                before_ms=old_ms,
                after_ms=new_ms,
                difference_ms=new_ms - old_ms,
                before_per_step=old_calls,
                after_per_step=new_calls,
            )
        )
    return tuple(sorted(changes, key=_order))


def _order(change: PartChange) -> tuple[float, str, str, str, int]:
    return -abs(change.difference_ms), change.bucket, change.name, change.group, change.size_bytes or 0


def line_changes(before: Analysis, after: Analysis) -> tuple[LineChange, ...]:
    """Return the change of each source line of the training thread, mean over ranks, largest difference first.

    The result is empty unless both runs timed lines. Two lines are the same if their file, function and text agree,
    because an edit above a line changes its number. If the text is unknown, the number must agree.
    """
    if not before.lines or not after.lines:
        return ()
    times: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    numbers: dict[tuple[str, str, str], int] = {}
    for side, analysis in enumerate((before, after)):
        ranks = len({line.rank for line in analysis.lines})
        for line in analysis.lines:
            if line.process == "training":
                key = line.file, line.function, line.source.strip() or str(line.line)
                times[key][side] += line.self_ms / ranks
                numbers[key] = line.line
    changes = [
        LineChange(
            file=file,
            line=numbers[file, function, source],
            function=function,
            source=source,
            before_ms=old,
            after_ms=new,
            difference_ms=new - old,
        )
        for (file, function, source), (old, new) in times.items()
    ]
    return tuple(sorted(changes, key=lambda change: (-abs(change.difference_ms), change.file, change.line)))
