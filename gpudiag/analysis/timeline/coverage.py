"""Coverage: the share of a recording's device work that the analysed steps stand for."""

from __future__ import annotations

from gpudiag.intervals import Intervals, lengths_between, union
from gpudiag.model.timeline import Lane


def covered_share(lane: Lane) -> float:
    """Return the share of the device's busy time in the recording that the lane's steps stand for, 0 to 1.

    That is what lies in the analysed windows, and in the step before the first and after the last of them: those are
    left out because their bounds are not known, and are counted with no more than the longest analysed step holds. All
    that follows the begin of the last step counts as one step at most, because its end is not known. On a CPU the
    training thread's operators take the place of device work.

        recording   ··██··│ #1  │ #2  │ #3  │ #4 │████████      first and last step left out: #2 and #3 analysed
        busy ms       4      20    21    20   9    60           (20 + 21 + 20 + 21) of 134 ms: 61 %
    """
    ops = lane.ops
    if len(ops) == 0 or len(lane.bounds) < 2:
        return 1.0
    busy = union(Intervals(ops.start, ops.end))
    total = int((busy.end - busy.start).sum())
    inside = lengths_between(busy, lane.bounds)
    begin, end = int(lane.bounds[0]), int(lane.bounds[-1])
    before = (ops.step >= 0) & (ops.start < begin)
    edges = 0
    for outside in (before, ops.start >= end):
        spans = union(Intervals(ops.start[outside], ops.end[outside]))
        edges += min(int((spans.end - spans.start).sum()), int(inside.max()))
    return min((int(inside.sum()) + edges) / total, 1.0) if total > 0 else 1.0
