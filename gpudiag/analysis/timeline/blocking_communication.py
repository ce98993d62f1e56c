"""Where the training thread of a CPU process waits inside an operator for a collective that the operator handed over.

Tensor parallelism does so in forward and backward: a function of autograd sums what the ranks have and returns the sum.
The operator is open all the while, but nothing is computed:

    training thread   _Summed ┤ clone ┤ c10d::allreduce_ ├╌╌╌╌╌╌ waits ╌╌╌╌╌╌├ next operator
    gloo thread                                      ├── gloo:all_reduce ──┤

An operator that hands over and goes on (DDP's hooks, between gradients) waits for nothing: its collective ends later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, union
from gpudiag.model.event import EventKind, EventTable, Role, Trace
from gpudiag.model.timeline import WAITED_NS


def awaited_inside(trace: Trace, thread: int) -> Intervals:
    """When this thread waited so, on the trace's own clock, as a set.

    Args:
        trace: of a process that computes on the host.
        thread: the one that trains.
    """
    events = trace.events
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == thread]
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    carried_out = np.array([call.row for call in trace.collectives], np.intp)
    carried_out = carried_out[events.thread[carried_out] != thread]
    first_in: dict[int, int] = {}
    for place, outer in _around(events, rows):
        first_in.setdefault(outer, place)
    waits = [_waits(events, rows, outer, place, carried_out) for outer, place in first_in.items()]
    return union(*waits) if waits else EMPTY


def _around(events: EventTable, rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Of each hand-over inside another operator its place among the rows, and that of the innermost around it."""
    end = events.end_ns[rows]
    reach = np.maximum.accumulate(end)
    found = []
    for place in np.flatnonzero(events.role[rows] == Role.ENQUEUE).tolist():
        outer = place - 1
        while outer >= 0 and reach[outer] >= end[place] and end[outer] < end[place]:
            outer -= 1
        if outer >= 0 and end[outer] >= end[place]:
            found.append((place, outer))
    return found


def _waits(
    events: EventTable, rows: NDArray[np.intp], outer: int, place: int, carried_out: NDArray[np.intp]
) -> Intervals:
    """The pauses of the operator at `outer` itself, after its hand-over at `place`, that a collective of it ended."""
    begin, end = int(events.start_ns[rows[place]]), int(events.end_ns[rows[outer]])
    after = int(np.searchsorted(events.start_ns[rows], end, side="left"))
    inner = rows[place:after]
    busy = union(Intervals(events.start_ns[inner], np.minimum(events.end_ns[inner], end)))
    start, stop = np.append(begin, busy.end), np.append(busy.start, end)
    ended = np.sort(events.end_ns[carried_out[events.start_ns[carried_out] >= begin]])
    waited_from, waited_to = [], []
    for pause, until in zip(start.tolist(), stop.tolist(), strict=True):
        if until - pause < WAITED_NS:
            continue
        # A collective's thread may lose its core before it records its own end: one a little later counts too.
        first, last = np.searchsorted(ended, [pause, until], side="right")
        late = last < len(ended) and ended[last] - until < until - pause
        if first < last or late:
            waited_from.append(pause)
            waited_to.append(int(ended[last - 1]) if first < last else until)
    return Intervals(np.array(waited_from, np.int64), np.array(waited_to, np.int64))
