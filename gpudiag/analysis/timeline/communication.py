"""Where the host itself is at an exchange: a collective that it carries out, or a hook, a parameter server, a gather.

    host     gloo:all_reduce ├──────────────────────┤      gpudiag.exchange ├── copy, sum, copy back ──┤
    device   ── backward ──┤                          ├── optimizer ──

What the device does not do meanwhile it does not do because of the exchange. A parameter server that updates in host
memory does so between its exchanges, inside an optimizer's step that gives the device nothing but their copies:

    host     Optimizer.step ├ exchange: sum ┤ update of the host's copy ├ exchange: fetch ┤
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, among, distinct, subtract, union, within
from gpudiag.model.event import NO_CORRELATION, EventKind, EventTable, Role, Trace, any_of
from gpudiag.model.timeline import PAUSE_NS, HostSteps, HostThread

Spans = dict[int, Intervals]

_ON_HOST = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)


def communication_spans(trace: Trace, threads: dict[int, HostThread], steps: HostSteps) -> tuple[Spans, Spans]:
    """When each host thread is at an exchange, and when it is or hands one over or packs gradients for it.

    Around threads that give devices their work (DataParallel's replicas) it is so only while those do nothing. Both on
    the trace's own clock, as sets by thread id.

    Args:
        trace: the process's trace.
        threads: what its host threads do, on the trace's own clock.
        steps: its steps, and which thread trains; likewise.
    """
    events = trace.events
    on_host = any_of(events.kind, *_ON_HOST)
    communications = np.flatnonzero(on_host & any_of(events.role, Role.COMMUNICATION))
    spans: Spans = {}
    if len(communications):
        rows = np.flatnonzero(on_host)
        launches = _launches(events, rows)
        communications = np.concatenate([communications, _updates_on_host(events, rows, communications, launches)])
        of_host = np.array([call.row for call in trace.collectives], np.int64)
        around = (events.kind[communications] == EventKind.ANNOTATION) & ~among(communications, of_host)
        launching = set(distinct(events.thread[launches]).tolist()) & threads.keys()
        for thread in distinct(events.thread[communications]).tolist():
            mine = events.thread[communications] == thread
            others = union(*(threads[other].busy for other in launching - {thread}))
            outside = subtract(_spans(events, communications[mine & around]), others)
            spans[thread] = union(_spans(events, communications[mine & ~around]), outside)
        awaited = _awaited(events, communications[around], threads, steps)
        spans[steps.thread] = union(spans.get(steps.thread, EMPTY), awaited)
    calls = np.flatnonzero(on_host & any_of(events.role, Role.ENQUEUE, Role.BUCKET_COPY))
    every = dict(spans)
    for thread in distinct(events.thread[calls]).tolist():
        mine = calls[events.thread[calls] == thread]
        every[thread] = union(every.get(thread, EMPTY), _spans(events, mine))
    return {thread: found for thread, found in spans.items() if len(found)}, every


def copies_beside(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """bool[n]: which of these device rows lie in a range of an exchange as their stream shows it.

    What a library's own threads launch has no launch in the trace, but the ranges that it was launched for.
    """
    marks = events.rows_of(EventKind.DEVICE_ANNOTATION)
    marks = marks[events.role[marks] == Role.COMMUNICATION]
    beside = np.zeros(len(rows), np.bool_)
    for device, stream in {*zip(events.device[marks].tolist(), events.thread[marks].tolist(), strict=True)}:
        mine = marks[(events.device[marks] == device) & (events.thread[marks] == stream)]
        here = np.flatnonzero((events.device[rows] == device) & (events.thread[rows] == stream))
        beside[here] = within(_spans(events, mine), events.start_ns[rows[here]])
    return beside


def launched_within(spans: Spans, thread: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: whether each host thread was inside its spans at each time."""
    inside = np.zeros(len(time), np.bool_)
    for ident, found in spans.items():
        mine = np.flatnonzero(thread == ident)
        inside[mine] = within(found, time[mine])
    return inside


def _awaited(
    events: EventTable, ranges: NDArray[np.intp], threads: dict[int, HostThread], steps: HostSteps
) -> Intervals:
    """When the training thread did nothing between the last range of an exchange and the update that needs it.

    Whoever carries such an exchange out (a library's thread, which no profiler sees) is not done before; gradients that
    are there let the update begin.
    """
    updates = np.sort(events.start_ns[(events.role == Role.OPTIMIZER) & (events.thread == steps.thread)])
    ends = np.sort(events.end_ns[ranges])
    if steps.thread not in threads or min(len(ends), len(updates), len(steps)) == 0:
        return EMPTY
    last = np.searchsorted(ends, updates, side="right") - 1
    begun = np.where(last >= 0, ends[np.maximum(last, 0)], updates)
    # An exchange of the step before is over.
    step = np.searchsorted(steps.start, updates, side="right") - 1
    begun = np.where((step >= 0) & (begun >= steps.start[np.maximum(step, 0)]), begun, updates)
    working = union(*(thread.busy for thread in threads.values()), *(thread.input for thread in threads.values()))
    silent = subtract(union(Intervals(begun, updates)), working)
    long = silent.end - silent.start >= PAUSE_NS
    return Intervals(silent.start[long], silent.end[long])


def _updates_on_host(
    events: EventTable, rows: NDArray[np.intp], communications: NDArray[np.intp], launches: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Optimizer steps around an exchange of a job with devices that give them no work but copies."""
    if len(launches) == 0:
        return np.empty(0, np.intp)
    steps = rows[events.role[rows] == Role.OPTIMIZER]
    kept = [row for row in steps.tolist() if _holds(events, row, communications) and not _holds(events, row, launches)]
    return np.array(kept, np.intp)


def _launches(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of host rows the calls that launched a kernel."""
    calls = rows[(events.kind[rows] == EventKind.RUNTIME) & (events.correlation[rows] != NO_CORRELATION)]
    kernels = events.correlation[events.rows_of(EventKind.KERNEL)]
    launches: NDArray[np.intp] = calls[among(events.correlation[calls], kernels)]
    return launches


def _holds(events: EventTable, row: int, others: NDArray[np.intp]) -> bool:
    """Whether one of the other rows begins inside the row, on its thread."""
    begun = (events.start_ns[others] >= events.start_ns[row]) & (events.start_ns[others] < events.end_ns[row])
    return bool((begun & (events.thread[others] == events.thread[row])).any())


def _spans(events: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return union(Intervals(events.start_ns[rows], events.end_ns[rows]))
