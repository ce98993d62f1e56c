"""Find when the training thread of a CPU process waits inside an operator for a collective that the operator enqueued.

This occurs with tensor parallelism in forward and backward: an autograd function sums over the ranks and returns the
sum. The operator stays open, but computes nothing:

    training thread   _Summed ┤ clone ┤ c10d::allreduce_ ├╌╌╌╌╌╌ waits ╌╌╌╌╌╌├ next operator
    gloo thread                                      ├── gloo:all_reduce ──┤

An operator that enqueues and continues (DDP's hooks, between gradients) does not wait: its collective ends later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, union
from gpudiag.model.event import EventKind, EventTable, Role, Trace
from gpudiag.model.timeline import WAITED_NS


def awaited_inside(trace: Trace, thread: int) -> Intervals:
    """Return the training thread's waits as intervals, in the trace's clock. The process must compute on the host."""
    events = trace.events
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == thread]
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    executed = np.array([call.row for call in trace.collectives], np.intp)
    executed = executed[events.thread[executed] != thread]
    first_in: dict[int, int] = {}
    for enqueue, outer in _enclosed_enqueues(events, rows):
        first_in.setdefault(outer, enqueue)
    waits = [_waits(events, rows, outer, enqueue, executed) for outer, enqueue in first_in.items()]
    return union(*waits) if waits else EMPTY


def _enclosed_enqueues(events: EventTable, rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return the positions of each enqueue inside an operator and of the innermost operator around it."""
    end = events.end_ns[rows]
    reach = np.maximum.accumulate(end)
    enclosed = []
    for enqueue in np.flatnonzero(events.role[rows] == Role.ENQUEUE).tolist():
        outer = enqueue - 1
        while outer >= 0 and reach[outer] >= end[enqueue] and end[outer] < end[enqueue]:
            outer -= 1
        if outer >= 0 and end[outer] >= end[enqueue]:
            enclosed.append((enqueue, outer))
    return enclosed


def _waits(
    events: EventTable, rows: NDArray[np.intp], outer: int, enqueue: int, executed: NDArray[np.intp]
) -> Intervals:
    """Return the pauses after the enqueue in the operator at `outer` that ended with one of its collectives."""
    begin, end = int(events.start_ns[rows[enqueue]]), int(events.end_ns[rows[outer]])
    after = int(np.searchsorted(events.start_ns[rows], end, side="left"))
    inner = rows[enqueue:after]
    busy = union(Intervals(events.start_ns[inner], np.minimum(events.end_ns[inner], end)))
    start, stop = np.append(begin, busy.end), np.append(busy.start, end)
    ended = np.sort(events.end_ns[executed[events.start_ns[executed] >= begin]])
    waited_from, waited_to = [], []
    for pause, until in zip(start.tolist(), stop.tolist(), strict=True):
        if until - pause < WAITED_NS:
            continue
        # A collective's thread may be preempted before it records its end, so a slightly later end counts too.
        first, last = np.searchsorted(ended, [pause, until], side="right")
        late = last < len(ended) and ended[last] - until < until - pause
        if first < last or late:
            waited_from.append(pause)
            waited_to.append(int(ended[last - 1]) if first < last else until)
    return Intervals(np.array(waited_from, np.int64), np.array(waited_to, np.int64))
