"""Leave out outlier steps, for instance with a pause, an evaluation, a checkpoint or a compilation.

A mean over steps of different kinds describes no step. If one of 147 ms is among steps of 29 ms, the mean suggests that
each step loses 20 ms. A few outliers are left out and reported. Many outliers belong to the job.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import FEWEST_STEPS_LEFT, MOST_OUTLIERS, UNLIKE_STEP
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.intervals import Intervals, intersect, median
from gpudiag.model.attribution import TrackAttribution
from gpudiag.model.timeline import DeviceTrack
from gpudiag.units import milliseconds


def without_outlier_steps(case: Case) -> Case:
    """Return the case reduced to the longest run without outliers if outliers are few, else the whole case.

    With an unprofiled step time there may be many outliers, but the reduced case must be nearer to that time than the
    whole case.
    """
    outliers_by_step = _outlier_steps(case)
    if not outliers_by_step:
        return case
    whole = replace(case, outlier_steps=_message(outliers_by_step, left_out=False))
    numbers = {tuple(track.window_steps.tolist()) for track in case.tracks}
    if len(numbers) != 1 or case.tracks[0].is_cpu:
        return whole
    (every,) = numbers
    longest = _longest_run_without_outliers(every, outliers_by_step)
    timed = case.unprofiled_ms
    if len(longest) < FEWEST_STEPS_LEFT or (timed is None and len(outliers_by_step) > MOST_OUTLIERS * len(every)):
        return whole
    first, after = longest[0], longest[-1] + 1
    tracks = tuple(_cut_track(track, first, after) for track in case.tracks)
    attributed = tuple(_cut_attribution(track, first, after) for track in case.attribution.tracks)
    cut = replace(
        case,
        timeline=msgspec.structs.replace(case.timeline, tracks=tracks),
        attribution=msgspec.structs.replace(case.attribution, tracks=attributed),
        outlier_steps=_message(outliers_by_step, left_out=True),
    )
    if timed is not None and abs(case.slowest_ms - timed) < abs(cut.slowest_ms - timed):
        return whole
    return cut


def _longest_run_without_outliers(steps: Sequence[int], outliers_by_step: Container[int]) -> list[int]:
    """Return the indices of the longest run of steps without outliers.

    The step after an outlier is left out too, because the outlier may delay its begin.
    """
    runs = [
        list(run) for odd, run in groupby(range(len(steps)), lambda index: steps[index] in outliers_by_step) if not odd
    ]
    return max((run if run[0] == 0 else run[1:] for run in runs), key=len, default=[])


def _outlier_steps(case: Case) -> dict[int, tuple[float, float, int]]:
    """Return for each outlier step (length in ns, usual length in ns, rank), of the rank where they differ most."""
    outliers: dict[int, tuple[float, float, int]] = {}
    for track, attributed in zip(case.tracks, case.attribution.tracks, strict=True):
        lengths = attributed.step_ns.astype(np.float64)
        if len(lengths) < 2:
            continue
        usual = median(np.sort(lengths)[:-1])
        for index in np.flatnonzero(lengths > UNLIKE_STEP * max(usual, 1.0)).tolist():
            number = int(track.window_steps[index])
            known = outliers.get(number)
            if known is None or lengths[index] / usual > known[0] / known[1]:
                outliers[number] = (float(lengths[index]), max(usual, 1.0), track.rank)
    return outliers


def _message(outliers_by_step: dict[int, tuple[float, float, int]], *, left_out: bool) -> str:
    number = max(outliers_by_step, key=lambda step: outliers_by_step[step][0] / outliers_by_step[step][1])
    length, usual, rank = outliers_by_step[number]
    others = f" (and {len(outliers_by_step) - 1} more like it)" if len(outliers_by_step) > 1 else ""
    took = f"{milliseconds(length):.1f} ms, the others {milliseconds(usual):.1f} ms"
    analysed = "the longest run of steps without it" if left_out else "all steps, including outliers"
    return (
        f"step {number}{others} took rank {rank} {took}: the findings describe {analysed}. Record steps after warm-up, "
        "without an evaluation or a checkpoint."
    )


def _cut_track(track: DeviceTrack, first: int, after: int) -> DeviceTrack:
    return msgspec.structs.replace(
        track, bounds=track.bounds[first : after + 1], window_steps=track.window_steps[first:after]
    )


def _cut_attribution(track: TrackAttribution, first: int, after: int) -> TrackAttribution:
    bounds = track.bounds[first : after + 1]
    span = Intervals(bounds[:1], bounds[-1:])

    def rows(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return values[first:after]

    return msgspec.structs.replace(
        track,
        bounds=bounds,
        parts={bucket: intersect(part, span) for bucket, part in track.parts.items()},
        buckets_ns=rows(track.buckets_ns),
        hidden_ns=rows(track.hidden_ns),
        waits_ns={rank: rows(share) for rank, share in track.waits_ns.items()},
        unsplit_ns=rows(track.unsplit_ns),
        unmarked_input=intersect(track.unmarked_input, span),
        queued=intersect(track.queued, span),
    )
