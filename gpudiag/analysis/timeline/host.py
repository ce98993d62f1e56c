"""Find when host threads worked, waited and communicated, and which device work they launched.

    host     gloo:all_reduce ├──────────────────────┤      gpudiag.exchange ├── copy, sum, copy back ──┤
    device   ── backward ──┤                          ├── optimizer ──

During these host spans the device is idle because of communication. With a parameter server, an optimizer step launches
only copies for communication, and updates the parameters in host memory:

    host     Optimizer.step ├ communication: sum ┤ update of the host's copy ├ communication: fetch ┤

The training thread of a CPU process may wait inside an operator for a collective that the operator enqueued. For
example, an autograd function of tensor parallelism returns a sum over ranks. During the wait, its operator is recorded
as running, but computes nothing:

    training thread   _Summed ┤ clone ┤ c10d::allreduce_ ├╌╌╌╌╌╌ waits ╌╌╌╌╌╌├ next operator
    gloo thread                                      ├── gloo:all_reduce ──┤

An operator that enqueues a collective and continues (DDP's hooks) does not wait: the collective ends later.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, among, distinct, groups, subtract, union, within
from gpudiag.model.event import NO_CORRELATION, EventKind, EventTable, HostMemory, Role, Trace, any_of
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, WAITED_NS, DeviceOps, HostSteps, HostThread, OpClass

Spans = dict[int, Intervals]

_ON_HOST = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
#: Role of device work → its class; roles without an entry below are copies.
_CLASS_OF = np.full(256, OpClass.COPY, np.uint8)
_CLASS_OF[Role.COMPUTE] = OpClass.COMPUTE
_CLASS_OF[Role.BUCKET_COPY] = OpClass.COMPUTE
_CLASS_OF[Role.COMMUNICATION] = OpClass.COMMUNICATION


def host_threads(events: EventTable, pageable_calls: NDArray[np.intp]) -> dict[int, HostThread]:
    """Return thread id → thread, for threads that run framework ops, launch device work or wait for data.

    Args:
        events: the process's events, on the trace's own clock.
        pageable_calls: rows of runtime calls that copied from or to pageable memory, which blocks the caller.
    """
    kind, role, thread = events.kind, events.role, events.thread
    on_host = any_of(kind, EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
    working = any_of(kind, EventKind.OPERATOR, EventKind.RUNTIME)
    waiting = any_of(role, Role.INPUT) & on_host
    # In a runtime call with a communication role, XLA or TensorFlow waits for its collective or its copies.
    waits = any_of(role, Role.COMMUNICATION) & any_of(kind, EventKind.RUNTIME)
    blocked = (any_of(role, Role.SYNCHRONIZATION, Role.RELEASE) & on_host) | waits
    blocked[pageable_calls] = True
    known, busy = working | waiting, working & ~waits
    rows = np.flatnonzero(known | blocked)
    threads = {}
    for ident, positions in groups(thread[rows]):
        on_thread = rows[positions]
        if known[on_thread].any():
            threads[ident] = HostThread(
                thread=ident,
                busy=union(_raw(events, on_thread[busy[on_thread]]), bridge_ns=PAUSE_NS),
                input=union(_raw(events, on_thread[waiting[on_thread]])),
                blocked=_raw(events, on_thread[blocked[on_thread]]),
            )
    return threads


def pageable_copy_calls(events: EventTable, copy_rows: NDArray[np.intp], calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of asynchronous copy calls that blocked nevertheless, because the host memory was pageable.

    `copy_rows` has copies on a device; `calls` has the row of the call of each, negative if it was not recorded.
    """
    if len(copy_rows) == 0:
        return np.empty(0, np.intp)
    pageable = (events.host_memory[copy_rows] == HostMemory.PAGEABLE) & (calls >= 0)
    # The driver buffers copies of a few kilobytes, which begin after their call has returned.
    pageable &= events.start_ns[copy_rows] < events.end_ns[calls]
    candidates = distinct(calls[pageable])
    blocking: NDArray[np.intp] = candidates[events.role[candidates] == Role.COPY]
    return blocking


def _raw(events: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return Intervals(events.start_ns[rows], events.end_ns[rows])


def communication_spans(trace: Trace, threads: dict[int, HostThread], steps: HostSteps) -> tuple[Spans, Spans]:
    """Return (each host thread's communication spans, the same spans with enqueues and bucket copies).

    A communication range counts only while other threads that launch device work (DataParallel's replicas) are idle.
    Both results map thread ids to sorted disjoint intervals on the trace's own clock.

    Args:
        trace: the process's trace.
        threads: the process's host threads, on the trace's own clock.
        steps: the process's steps, on the trace's own clock.
    """
    events = trace.events
    on_host = any_of(events.kind, *_ON_HOST)
    # A send's record lasts until its process waits for the send. Only a matched receive shows the true end of a send.
    messages = np.array([call.row for call in trace.collectives if call.operation in {"send", "recv"}], np.int64)
    communications = np.flatnonzero(on_host & any_of(events.role, Role.COMMUNICATION))
    communications = communications[~among(communications, messages)]
    spans: Spans = {}
    if len(communications):
        rows = np.flatnonzero(on_host)
        launches = _launches(events, rows)
        communications = np.concatenate([communications, _updates_on_host(events, rows, communications, launches)])
        collectives = np.array([call.row for call in trace.collectives], np.int64)
        # Ranges around communication, which also span what other threads compute meanwhile.
        around = (events.kind[communications] == EventKind.ANNOTATION) & ~among(communications, collectives)
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
    """Return bool[n]: whether each row of device work begins in a communication annotation on its stream.

    Traces lack the launches of a library's own threads, but annotate the device work that these threads launched.
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
    """Return bool[n]: whether the host thread `thread[i]` was inside its spans at `time[i]`."""
    inside = np.zeros(len(time), np.bool_)
    for thread_id, thread_spans in spans.items():
        of_thread = np.flatnonzero(thread == thread_id)
        inside[of_thread] = within(thread_spans, time[of_thread])
    return inside


def _awaited(
    events: EventTable, ranges: NDArray[np.intp], threads: dict[int, HostThread], steps: HostSteps
) -> Intervals:
    """Return the training thread's idle time from the last of the communication `ranges` to the update that needs it.

    During such idle time a library's thread communicates, but no profiler records this thread.
    """
    updates = np.sort(events.start_ns[(events.role == Role.OPTIMIZER) & (events.thread == steps.thread)])
    ends = np.sort(events.end_ns[ranges])
    if steps.thread not in threads or min(len(ends), len(updates), len(steps)) == 0:
        return EMPTY
    last = np.searchsorted(ends, updates, side="right") - 1
    begun = np.where(last >= 0, ends[np.maximum(last, 0)], updates)
    # If the last range belongs to the previous step, the update waited for no range.
    step = np.searchsorted(steps.start, updates, side="right") - 1
    begun = np.where((step >= 0) & (begun >= steps.start[np.maximum(step, 0)]), begun, updates)
    working = union(*(thread.busy for thread in threads.values()), *(thread.input for thread in threads.values()))
    idle = subtract(union(Intervals(begun, updates)), working)
    long = idle.end - idle.start >= PAUSE_NS
    return Intervals(idle.start[long], idle.end[long])


def _updates_on_host(
    events: EventTable, host_rows: NDArray[np.intp], communications: NDArray[np.intp], launches: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the optimizer steps that contain communication and launch no kernels; empty in a job without devices."""
    if len(launches) == 0:
        return np.empty(0, np.intp)
    steps = host_rows[events.role[host_rows] == Role.OPTIMIZER]
    kept = [row for row in steps.tolist() if _holds(events, row, communications) and not _holds(events, row, launches)]
    return np.array(kept, np.intp)


def _launches(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of calls that launched a kernel, among the host events `rows`."""
    calls = rows[(events.kind[rows] == EventKind.RUNTIME) & (events.correlation[rows] != NO_CORRELATION)]
    kernels = events.correlation[events.rows_of(EventKind.KERNEL)]
    launches: NDArray[np.intp] = calls[among(events.correlation[calls], kernels)]
    return launches


def _holds(events: EventTable, row: int, others: NDArray[np.intp]) -> bool:
    """Return whether any of the rows `others` begins inside `row`, on the same thread."""
    begun = (events.start_ns[others] >= events.start_ns[row]) & (events.start_ns[others] < events.end_ns[row])
    return bool((begun & (events.thread[others] == events.thread[row])).any())


def _spans(events: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return union(Intervals(events.start_ns[rows], events.end_ns[rows]))


def awaited_inside(trace: Trace, thread: int) -> Intervals:
    """Return the waits for collectives inside operators of a CPU process's training thread, on the trace's clock."""
    events = trace.events
    rows = events.rows_of(EventKind.OPERATOR)
    rows = rows[events.thread[rows] == thread]
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    executed = np.array([call.row for call in trace.collectives], np.intp)
    executed = executed[events.thread[executed] != thread]  # collectives that other threads executed
    first_in: dict[int, int] = {}  # operator → its first enqueue
    for enqueue, outer in _enclosed_enqueues(events, rows):
        first_in.setdefault(outer, enqueue)
    waits = [_waits(events, rows, outer, enqueue, executed) for outer, enqueue in first_in.items()]
    return union(*waits) if waits else EMPTY


def _enclosed_enqueues(events: EventTable, rows: NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return (enqueue, innermost operator that encloses it), as positions in `rows`, for enqueues inside operators."""
    end = events.end_ns[rows]
    reach = np.maximum.accumulate(end)  # no operator up to this position ends later, so that the search may stop
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
    """Return the pauses inside the operator at `outer` and after `enqueue` that ended when a collective ended.

    `rows` has operators by start, in which `outer` and `enqueue` are positions; `executed` has rows of collectives.
    """
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
        # The collective's thread may be preempted before it records the end, so that a slightly later end counts too.
        first, last = np.searchsorted(ended, [pause, until], side="right")
        late = last < len(ended) and ended[last] - until < until - pause
        if first < last or late:
            waited_from.append(pause)
            waited_to.append(int(ended[last - 1]) if first < last else until)
    return Intervals(np.array(waited_from, np.int64), np.array(waited_to, np.int64))


def runtime_call_of(events: EventTable, device_rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, for each device row, the row of the runtime call with the same correlation id, or `UNKNOWN`.

    Several device ops may share one call (a CUDA graph launch). If several calls have the same id (a runtime call and
    the driver call inside it), the outer call, which starts first, is used.
    """
    calls = events.rows_of(EventKind.RUNTIME)
    calls = calls[events.correlation[calls] != NO_CORRELATION]
    if len(calls) == 0:
        return np.full(len(device_rows), UNKNOWN, np.intp)
    order = np.argsort(events.correlation[calls], kind="stable")
    ids = events.correlation[calls[order]]
    wanted = events.correlation[device_rows]
    slot = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    known = (ids[slot] == wanted) & (wanted != NO_CORRELATION)
    return np.where(known, calls[order[slot]], UNKNOWN)


def device_ops(
    events: EventTable,
    rows: NDArray[np.intp],
    calls: NDArray[np.intp],
    *,
    step_start: NDArray[np.int64],
    communication: Spans,
) -> DeviceOps:
    """Return the work of one device, with the launch and step of each op, on the trace's own clock.

    Args:
        events: the process's events, on the trace's own clock.
        rows: rows of the device's work.
        calls: for each device row, the row of the call that launched it, or `UNKNOWN`.
        step_start: int64[n], sorted starts of the host steps, on the trace's own clock.
        communication: thread id → communication spans, on the trace's own clock. Copies launched in these spans count
            as communication.
    """
    known = calls != UNKNOWN
    launch_start = np.where(known, events.start_ns[calls], 0)
    launch_end = np.where(known, events.end_ns[calls], 0)
    # An op belongs to the last step that was marked before its launch, or to no step.
    step = np.where(known, np.searchsorted(step_start, launch_start, side="right") - 1, UNKNOWN)
    op_class = _CLASS_OF[events.role[rows]]
    thread = np.where(known, events.thread[calls], UNKNOWN)
    beside = np.where(known, launched_within(communication, thread, launch_start), copies_beside(events, rows))
    copied = (op_class == OpClass.COPY) & beside
    op_class = np.where(copied, np.uint8(OpClass.COMMUNICATION), op_class)
    return DeviceOps(
        start=events.start_ns[rows],
        end=events.end_ns[rows],
        op_class=op_class,
        row=rows.astype(np.int64),
        stream=events.thread[rows],
        step=step.astype(np.int32),
        launch_start=np.where(known, launch_start, UNKNOWN),
        launch_end=np.where(known, launch_end, UNKNOWN),
        launch_thread=thread,
    )
