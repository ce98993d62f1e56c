"""Provide the facts that rules read, each computed once, and leave out outlier steps.

A mean over steps of different kinds describes no step: if one step in six takes 147 ms and the other steps take 29 ms,
the mean suggests that each step loses 20 ms. Therefore outlier steps are left out if they are few. A warning reports
outlier steps, whether left out or not.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.work import ComputeWork
from gpudiag.analysis.diagnosis.calibration import FEWEST_STEPS_LEFT, MOST_OUTLIERS, UNLIKE_STEP
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if
from gpudiag.analysis.diagnosis.unprofiled_steps import (
    devices_set_pace,
    fastest_host_ms,
    input_ms_above_most,
    unprofiled_input,
)
from gpudiag.intervals import Intervals, among, intersect, median
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.facts import Facts
from gpudiag.model.run import ComputeRate, RunRecord
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, Timeline, TrackAttribution
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.source_lines import CaseLines
    from gpudiag.model.source_lines.log import LineLogs


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job: its timeline and attribution, and the facts of its machine and run.

    Attributes:
        timeline: device tracks of all ranks on one clock.
        attribution: buckets (parts of the step time) of each track's steps.
        facts: measurements of the machine, if known.
        run: the record of the run, if gpudiag recorded it.
        work: classes of the kernels, and compilations; None if kernels were not classified.
        line_logs: line events of the run's processes.
        rate: FLOPs per step and per second, if the run counted FLOPs.
        outlier_steps: message about outlier steps; "" if there are none.
    """

    timeline: Timeline
    attribution: Attribution
    facts: Facts | None = None
    run: RunRecord | None = None
    work: ComputeWork | None = None
    line_logs: LineLogs | None = None
    rate: ComputeRate | None = None
    outlier_steps: str = ""

    @cached_property
    def what_if(self) -> WhatIf | None:
        """Return the what-if simulation, or None if the traces hold nothing to simulate."""
        return build_what_if(
            self.timeline,
            self.unprofiled_ms,
            host_ms=fastest_host_ms(self.run),
            devices_set_pace=devices_set_pace(self.run),
            later_input_ms=input_ms_above_most(self.run),
            unprofiled_input=unprofiled_input(self.run),
            recorded_ms=self.slowest_ms,
            tracing=None if self.lines is None else self.lines.tracing_ns,
        )

    @cached_property
    def lines(self) -> CaseLines | None:
        """Return the lines of the user's source; None if no lines were recorded."""
        if self.line_logs is None or not self.line_logs.ranks:
            return None
        ranks = () if self.run is None else self.run.ranks
        unprofiled = {rank.rank: rank.unprofiled.mean_ms for rank in ranks if rank.unprofiled is not None}
        from gpudiag.analysis.diagnosis.source_lines import CaseLines  # noqa: PLC0415  # not needed for bare traces

        return CaseLines(self.timeline, self.line_logs, unprofiled)

    @cached_property
    def step_ms(self) -> float:
        """Return the mean length of a recorded step over all devices, in ms."""
        means = [float(track.step_ns.mean()) for track in self.attribution.tracks if len(track.step_ns)]
        return milliseconds(float(np.mean(means))) if means else 0.0

    @cached_property
    def slowest_ms(self) -> float:
        """Return the mean length of a recorded step on the slowest device, in ms."""
        return milliseconds(
            max((float(track.step_ns.mean()) for track in self.attribution.tracks if len(track.step_ns)), default=0)
        )

    @cached_property
    def steps(self) -> int:
        """Return the number of analysed steps."""
        return min((len(track.window_steps) for track in self.timeline.tracks), default=0)

    @property
    def tracks(self) -> tuple[DeviceTrack, ...]:
        """Return the device tracks."""
        return self.timeline.tracks

    def exposed_ms(self, *buckets: str) -> dict[int, float]:
        """Return rank → mean ms per step in these buckets, on the rank's device with the largest mean."""
        columns = [BUCKETS.index(bucket) for bucket in buckets]
        exposed: dict[int, float] = {}
        for track in self.attribution.tracks:
            if len(track.buckets_ns):
                value = milliseconds(track.buckets_ns[:, columns].sum(axis=1).mean())
                exposed[track.rank] = max(exposed.get(track.rank, 0.0), value)
        return exposed

    @cached_property
    def unprofiled_ms(self) -> float | None:
        """Return the mean unprofiled step time of the slowest rank, in ms; None if the run has no unprofiled steps."""
        if self.run is None:
            return None
        return max((rank.unprofiled.mean_ms for rank in self.run.ranks if rank.unprofiled is not None), default=None)

    def unseen_share(self) -> float:
        """Return the share (0 to 1) of the transfer time that is in collectives with a rank that has no trace."""
        tables = [track.collectives for track in self.tracks]
        instance = np.concatenate([table.instance for table in tables])
        # A kind's third item is the number of participants, 0 if unknown.
        ranks = [np.array([kind[2] or self.timeline.world_size for kind in table.kinds], np.int64) for table in tables]
        expected = np.concatenate([sizes[table.kind] for sizes, table in zip(ranks, tables, strict=True)])
        # A transfer begins at the last arrival, or at the start if the last arrival is unknown.
        time = np.concatenate([table.end - np.maximum(table.last_arrival, table.start) for table in tables])
        if not time.sum():
            return 0.0
        if self.timeline.left_out:  # ranks that were left out have no table to count
            whole = np.concatenate(list(self.timeline.whole_collectives(self.tracks)))
            return float(time[(instance == UNKNOWN) | ~whole].sum() / time.sum())
        _, index, present = np.unique(instance, return_inverse=True, return_counts=True)
        incomplete = (instance == UNKNOWN) | (present[index] < expected)  # fewer tracks than participants
        return float(time[incomplete].sum() / time.sum())

    def one_of_many(self) -> bool:
        """Return whether only one of several ranks has a trace."""
        return len(self.timeline.ranks_present) == 1 and len(self.tracks) == 1 and self.timeline.world_size > 1


def without_outlier_steps(case: Case) -> Case:
    """Reduce the case to its longest run of steps without outliers; return the whole case if outliers are many.

    If the unprofiled step time is known, the number of outliers does not matter. The function then returns the case,
    whole or reduced, whose mean step time is nearer to the unprofiled step time. CPU processes, tracks with different
    steps, and cases whose longest run has fewer than `FEWEST_STEPS_LEFT` steps keep all steps. `outlier_steps` of the
    result reports the outliers in any case.
    """
    outliers_by_step = _outlier_steps(case)
    if not outliers_by_step:
        return case
    whole = replace(case, outlier_steps=_message(outliers_by_step, left_out=False))
    steps_of_tracks = {tuple(track.window_steps.tolist()) for track in case.tracks}
    if len(steps_of_tracks) != 1 or case.tracks[0].is_cpu:
        return whole
    (steps,) = steps_of_tracks
    longest = _longest_run_without_outliers(steps, outliers_by_step)
    unprofiled_ms = case.unprofiled_ms
    few = len(outliers_by_step) <= MOST_OUTLIERS * len(steps)
    if len(longest) < FEWEST_STEPS_LEFT or (unprofiled_ms is None and not few):
        return whole
    kept = case.tracks[0].window_steps[longest[0] : longest[-1] + 1]
    timeline, attribution = only_steps(case.timeline, case.attribution, kept)
    cut = replace(
        case,
        timeline=timeline,
        attribution=attribution,
        outlier_steps=_message(outliers_by_step, left_out=True),
    )
    if unprofiled_ms is not None and abs(case.slowest_ms - unprofiled_ms) < abs(cut.slowest_ms - unprofiled_ms):
        return whole
    return cut


def _longest_run_without_outliers(steps: Sequence[int], outliers_by_step: Container[int]) -> list[int]:
    """Return the indices of the longest run of steps without outliers.

    The step after an outlier is left out too, because the outlier may have delayed this step.
    """
    runs = [
        list(run) for odd, run in groupby(range(len(steps)), lambda index: steps[index] in outliers_by_step) if not odd
    ]
    return max((run if run[0] == 0 else run[1:] for run in runs), key=len, default=[])


def _outlier_steps(case: Case) -> dict[int, tuple[float, float, int]]:
    """Return number of an outlier step → (length, usual length, rank), in ns, on the rank with the largest ratio."""
    outliers: dict[int, tuple[float, float, int]] = {}
    for track, attributed in zip(case.tracks, case.attribution.tracks, strict=True):
        lengths = attributed.step_ns.astype(np.float64)
        if len(lengths) < 2:
            continue
        usual = median(np.sort(lengths)[:-1])  # without the longest step, which may be an outlier
        for index in np.flatnonzero(lengths > UNLIKE_STEP * max(usual, 1.0)).tolist():  # most steps may take 0 ns
            number = int(track.window_steps[index])
            known = outliers.get(number)
            if known is None or lengths[index] / usual > known[0] / known[1]:
                outliers[number] = (float(lengths[index]), max(usual, 1.0), track.rank)
    return outliers


def _message(outliers_by_step: dict[int, tuple[float, float, int]], *, left_out: bool) -> str:
    """Describe the outlier with the largest ratio to its usual length, and count the others (see `_outlier_steps`)."""
    number = max(outliers_by_step, key=lambda step: outliers_by_step[step][0] / outliers_by_step[step][1])
    length, usual, rank = outliers_by_step[number]
    others = f" (and {len(outliers_by_step) - 1} more like it)" if len(outliers_by_step) > 1 else ""
    took = f"{milliseconds(length):.1f} ms, the others {milliseconds(usual):.1f} ms"
    analysed = "the longest run of steps without it" if left_out else "all steps, including outliers"
    return (
        f"step {number}{others} took rank {rank} {took}: the findings describe {analysed}. Record steps after warm-up, "
        "without an evaluation or a checkpoint."
    )


def only_steps(timeline: Timeline, attribution: Attribution, steps: NDArray[np.int64]) -> tuple[Timeline, Attribution]:
    """Cut timeline and attribution to the consecutive steps with the numbers `steps`; leave out tracks without them."""
    kept = []
    for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True):
        windows = np.flatnonzero(among(track.window_steps, steps))
        if len(windows) == len(track.window_steps):
            kept.append((track, attributed))
        elif len(windows):
            span = int(windows[0]), int(windows[-1]) + 1
            kept.append((_cut_track(track, *span), _cut_attribution(attributed, *span)))
    return (
        msgspec.structs.replace(timeline, tracks=tuple(track for track, _ in kept)),
        msgspec.structs.replace(attribution, tracks=tuple(attributed for _, attributed in kept)),
    )


def _cut_track(track: DeviceTrack, first: int, after: int) -> DeviceTrack:
    return msgspec.structs.replace(
        track, bounds=track.bounds[first : after + 1], window_steps=track.window_steps[first:after]
    )


def _cut_attribution(track: TrackAttribution, first: int, after: int) -> TrackAttribution:
    """Return the attribution of the windows `first` to `after` - 1."""
    bounds = track.bounds[first : after + 1]
    span = Intervals(bounds[:1], bounds[-1:])
    kept = slice(first, after)
    return msgspec.structs.replace(
        track,
        bounds=bounds,
        parts={bucket: intersect(part, span) for bucket, part in track.parts.items()},
        buckets_ns=track.buckets_ns[kept],
        hidden_ns=track.hidden_ns[kept],
        waits_ns={rank: share[kept] for rank, share in track.waits_ns.items()},
        unsplit_ns=track.unsplit_ns[kept],
        unmarked_input=intersect(track.unmarked_input, span),
        queued=intersect(track.queued, span),
    )
