"""Find when the host itself communicates: a collective that it executes, a hook, a parameter server, a gather.

    host     gloo:all_reduce ├──────────────────────┤      gpudiag.exchange ├── copy, sum, copy back ──┤
    device   ── backward ──┤                          ├── optimizer ──

Communication causes the device's idle time during these spans. A parameter server updates in host memory between its
communications, inside an optimizer step that launches only the copies of that communication:

    host     Optimizer.step ├ communication: sum ┤ update of the host's copy ├ communication: fetch ┤
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
    """Return each host thread's communication spans, and the same spans including enqueues and bucket copies.

    A range around threads that launch device work (DataParallel's replicas) counts only while these threads are idle.
    Both results are sets by thread id, on the trace's own clock.

    Args:
        trace: the process's trace.
        threads: the process's host threads, on the trace's own clock.
        steps: the process's steps, on the trace's own clock.
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
            on_thread = events.thread[communications] == thread
            others = union(*(threads[other].busy for other in launching - {thread}))
            outside = subtract(_spans(events, communications[on_thread & around]), others)
            spans[thread] = union(_spans(events, communications[on_thread & ~around]), outside)
        awaited = _awaited(events, communications[around], threads, steps)
        spans[steps.thread] = union(spans.get(steps.thread, EMPTY), awaited)
    calls = np.flatnonzero(on_host & any_of(events.role, Role.ENQUEUE, Role.BUCKET_COPY))
    with_calls = dict(spans)
    for thread in distinct(events.thread[calls]).tolist():
        on_thread = calls[events.thread[calls] == thread]
        with_calls[thread] = union(with_calls.get(thread, EMPTY), _spans(events, on_thread))
    return {thread: inside for thread, inside in spans.items() if len(inside)}, with_calls


def copies_beside(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return for each device row whether it lies in a communication range on its stream: bool[n].

    The trace has no launches by a library's own threads, but it has the range in which they launched the work.
    """
    marks = events.rows_of(EventKind.DEVICE_ANNOTATION)
    marks = marks[events.role[marks] == Role.COMMUNICATION]
    beside = np.zeros(len(rows), np.bool_)
    for device, stream in {*zip(events.device[marks].tolist(), events.thread[marks].tolist(), strict=True)}:
        on_stream = marks[(events.device[marks] == device) & (events.thread[marks] == stream)]
        here = np.flatnonzero((events.device[rows] == device) & (events.thread[rows] == stream))
        beside[here] = within(_spans(events, on_stream), events.start_ns[rows[here]])
    return beside


def launched_within(spans: Spans, thread: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether each host thread was inside its spans at each time: bool[n]."""
    inside = np.zeros(len(time), np.bool_)
    for thread_id, thread_spans in spans.items():
        of_thread = np.flatnonzero(thread == thread_id)
        inside[of_thread] = within(thread_spans, time[of_thread])
    return inside


def _awaited(
    events: EventTable, ranges: NDArray[np.intp], threads: dict[int, HostThread], steps: HostSteps
) -> Intervals:
    """Return the training thread's idle time between the last communication range and the update that needs its result.

    During this time a library's thread, which no profiler records, communicates; when it ends, the update begins.
    """
    updates = np.sort(events.start_ns[(events.role == Role.OPTIMIZER) & (events.thread == steps.thread)])
    ends = np.sort(events.end_ns[ranges])
    if steps.thread not in threads or min(len(ends), len(updates), len(steps)) == 0:
        return EMPTY
    last = np.searchsorted(ends, updates, side="right") - 1
    begun = np.where(last >= 0, ends[np.maximum(last, 0)], updates)
    # Communication of the previous step is over.
    step = np.searchsorted(steps.start, updates, side="right") - 1
    begun = np.where((step >= 0) & (begun >= steps.start[np.maximum(step, 0)]), begun, updates)
    working = union(*(thread.busy for thread in threads.values()), *(thread.input for thread in threads.values()))
    idle = subtract(union(Intervals(begun, updates)), working)
    long = idle.end - idle.start >= PAUSE_NS
    return Intervals(idle.start[long], idle.end[long])


def _updates_on_host(
    events: EventTable, rows: NDArray[np.intp], communications: NDArray[np.intp], launches: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the optimizer steps around communication that launch no kernels, in a job with devices."""
    if len(launches) == 0:
        return np.empty(0, np.intp)
    steps = rows[events.role[rows] == Role.OPTIMIZER]
    kept = [row for row in steps.tolist() if _holds(events, row, communications) and not _holds(events, row, launches)]
    return np.array(kept, np.intp)


def _launches(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Select the calls that launched a kernel among host rows."""
    calls = rows[(events.kind[rows] == EventKind.RUNTIME) & (events.correlation[rows] != NO_CORRELATION)]
    kernels = events.correlation[events.rows_of(EventKind.KERNEL)]
    launches: NDArray[np.intp] = calls[among(events.correlation[calls], kernels)]
    return launches


def _holds(events: EventTable, row: int, others: NDArray[np.intp]) -> bool:
    """Return whether any of the other rows begins inside the row, on its thread."""
    begun = (events.start_ns[others] >= events.start_ns[row]) & (events.start_ns[others] < events.end_ns[row])
    return bool((begun & (events.thread[others] == events.thread[row])).any())


def _spans(events: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return union(Intervals(events.start_ns[rows], events.end_ns[rows]))
