"""Leave out steps of another kind: a pause, an evaluation, a checkpoint or a compilation among the steps.

A mean over unlike steps describes neither kind: of 29 ms steps with one of 147 ms between them, a diagnosis of the mean
says that 20 ms of each step are lost. A few outliers are left out, and reported. Many outliers are what the job does.
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
    """Return the case of the longest run of alike steps if few steps are outliers, else the case itself.

    Where the step time was measured without the profiler, there may be as many as there are, but what is left must be
    nearer to that time than what there was.
    """
    unlike = _outlier_steps(case)
    if not unlike:
        return case
    said = replace(case, outlier_steps=_in_words(unlike, left_out=False))
    numbers = {tuple(track.window_steps.tolist()) for track in case.tracks}
    if len(numbers) != 1 or case.tracks[0].is_cpu:
        return said
    (every,) = numbers
    longest = _longest_run_of_alike(every, unlike)
    timed = case.unprofiled_ms
    if len(longest) < FEWEST_STEPS_LEFT or (timed is None and len(unlike) > MOST_OUTLIERS * len(every)):
        return said
    first, after = longest[0], longest[-1] + 1
    tracks = tuple(_cut_track(track, first, after) for track in case.tracks)
    attributed = tuple(_cut_attribution(track, first, after) for track in case.attribution.tracks)
    cut = replace(
        case,
        timeline=msgspec.structs.replace(case.timeline, tracks=tracks),
        attribution=msgspec.structs.replace(case.attribution, tracks=attributed),
        outlier_steps=_in_words(unlike, left_out=True),
    )
    if timed is not None and abs(case.slowest_ms - timed) < abs(cut.slowest_ms - timed):
        return said
    return cut


def _longest_run_of_alike(steps: Sequence[int], unlike: Container[int]) -> list[int]:
    """Return the indices of the longest run of steps without outliers.

    The step after an outlier is left out too: what delayed its begin may belong to the outlier's end.
    """
    runs = [list(run) for odd, run in groupby(range(len(steps)), lambda index: steps[index] in unlike) if not odd]
    return max((run if run[0] == 0 else run[1:] for run in runs), key=len, default=[])


def _outlier_steps(case: Case) -> dict[int, tuple[float, float, int]]:
    """Return for each outlier step its length and the usual one, in ns, and the rank on which they differ most."""
    found: dict[int, tuple[float, float, int]] = {}
    for track, attributed in zip(case.tracks, case.attribution.tracks, strict=True):
        lengths = attributed.step_ns.astype(np.float64)
        if len(lengths) < 2:
            continue
        usual = median(np.sort(lengths)[:-1])
        for index in np.flatnonzero(lengths > UNLIKE_STEP * max(usual, 1.0)).tolist():
            number = int(track.window_steps[index])
            known = found.get(number)
            if known is None or lengths[index] / usual > known[0] / known[1]:
                found[number] = (float(lengths[index]), max(usual, 1.0), track.rank)
    return found


def _in_words(unlike: dict[int, tuple[float, float, int]], *, left_out: bool) -> str:
    number = max(unlike, key=lambda one: unlike[one][0] / unlike[one][1])
    length, usual, rank = unlike[number]
    others = f" (and {len(unlike) - 1} more like it)" if len(unlike) > 1 else ""
    took = f"{milliseconds(length):.1f} ms, the others {milliseconds(usual):.1f} ms"
    of = "the longest run of steps without it" if left_out else "means of unlike steps"
    return (
        f"step {number}{others} took rank {rank} {took}: the findings are of {of}. Record steps after warm-up, without "
        "an evaluation or a checkpoint among them."
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
