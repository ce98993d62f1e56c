"""Coverage: the share of a recording's device work that the analysed steps stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, lengths_between, union
from gpudiag.model.timeline import UNKNOWN, DeviceTrack


def covered_share(track: DeviceTrack) -> float:
    """Return the share of the device's busy time in the recording that the lane's steps stand for, 0 to 1.

    That is what lies in the analysed windows, and in the step before the first and after the last of them: those are
    left out because their bounds are not known, and are counted with no more than the longest analysed step holds. All
    that follows the begin of the last step counts as one step at most, because its end is not known. On a CPU the
    training thread's operators and the collectives take the place of device work.

        recording   ··██··│ #1  │ #2  │ #3  │ #4 │████████      first and last step left out: #2 and #3 analysed
        busy ms       4      20    21    20   9    60           (20 + 21 + 20 + 21) of 130 ms: 63 %

    The 4 ms before the first mark were launched before the recording began and do not count.
    """
    if len(track.ops) == 0 or len(track.bounds) < 2:
        return 1.0
    work, in_a_step = recorded_work(track)
    busy = union(work)
    total = int((busy.end - busy.start).sum())
    inside = lengths_between(busy, track.bounds)
    begin, end = int(track.bounds[0]), int(track.bounds[-1])
    edges = 0
    for outside in (in_a_step & (work.start < begin), work.start >= end):
        spans = union(Intervals(work.start[outside], work.end[outside]))
        edges += min(int((spans.end - spans.start).sum()), int(inside.max()))
    return min((int(inside.sum()) + edges) / total, 1.0) if total > 0 else 1.0


def recorded_work(track: DeviceTrack) -> tuple[Intervals, NDArray[np.bool_]]:
    """Return what the device did in the recording as raw intervals, and for each whether a recorded step launched it.

    Work before the windows whose launch was not captured is left out: it was queued before the recording began. On a
    CPU these are the training thread's operators and the collectives, which run on threads of their own.
    """
    ops, calls = track.ops, track.collectives
    if not track.is_cpu:
        kept = (ops.launch_start != UNKNOWN) | (ops.start >= track.bounds[0])
        return Intervals(ops.start[kept], ops.end[kept]), ops.step[kept] >= 0
    start, end = np.append(ops.start, calls.start), np.append(ops.end, calls.end)
    return Intervals(start, end), np.append(ops.step >= 0, calls.start >= track.steps.start[:1])
