"""Split the trace of a process that trains on several logical devices of a CPU into one trace per device.

TensorFlow's executor runs a device's ops on any of its free threads, while the training thread waits in its function
call. In a device's trace, the training thread runs the device's ops, and waits before an op that can begin only after
a communication:

    executor   CPU:1 grad │ _Send ……… CPU:0 AddN ……… CPU:1 update
    trace 1    grad       │    waits for communication │ update

A call of a function ends with a wait for all devices; with a parameter server, a step ends with it. If a communication
ends during this wait, the wait is for communication. The rest of the function's time belongs to the executor.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, among, complement, distinct, intersect, subtract, union
from gpudiag.model.event import (
    HOST,
    NO_CORRELATION,
    NO_SIZE,
    CollectiveCall,
    Direction,
    EventKind,
    EventTable,
    HostMemory,
    Role,
    Trace,
    in_order,
)
from gpudiag.trace.readers.xspace.process import Process, step_marks_of
from gpudiag.trace.readers.xspace.waits import COMMUNICATION_WAIT, SHORT_PAUSE_NS, functions

#: Name of the time in a `tf.function` call in which the device neither runs an op nor waits for communication.
EXECUTOR = "tf.executor"


def trace_per_logical_device(process: Process) -> tuple[Trace, ...]:
    """Return the traces of a process's logical devices, in order; the whole trace if there is only one device."""
    devices = distinct(process.runs_on[process.runs_on >= 0]).tolist()
    if len(devices) < 2 or process.training_thread is None:
        return (process.trace,)
    traces = [_device_trace(process, device, process.training_thread) for device in devices]
    return (traces[0], *(replace(trace, notes=()) for trace in traces[1:]))  # the process's notes are reported once


def _device_trace(process: Process, device: int, thread: int) -> Trace:
    """Return the trace of one logical `device`, in which the training thread `thread` runs the device's ops and waits.

    A thread does one thing at a time, so only the time of a communication op in which no other op runs is kept.
    """
    trace, events = process.trace, process.trace.events
    rows = np.flatnonzero((process.runs_on == device) & (events.end_ns > events.start_ns))
    communicates = events.role[rows] == Role.COMMUNICATION
    work, work_row = serialized(events, rows[~communicates])
    transfers, transfer_row = serialized(events, rows[communicates])
    exposed = subtract(transfers, work)
    # Row of the communication op to which each exposed part belongs.
    transfer_row = transfer_row[np.searchsorted(transfers.start, exposed.start, side="right") - 1]
    waits = subtract(union(_before_needs(process, rows), _at_the_end(process, rows)), union(work, exposed))
    executor = subtract(union(Intervals(*functions(process))), union(work, exposed, waits))
    kept = np.flatnonzero((events.thread == thread) | (events.kind == EventKind.OVERHEAD))
    # Operators of the training thread are left out, because they span the time in which executors run the ops.
    kept = kept[(events.kind[kept] != EventKind.OPERATOR) | (events.role[kept] == Role.INPUT)]
    ops = Intervals(np.concatenate([work.start, exposed.start]), np.concatenate([work.end, exposed.end]))
    op_rows = np.concatenate([work_row, transfer_row])
    table = _joined(taken(events, kept), ops_of_thread(events, op_rows, ops, thread), _calls(waits, executor, thread))
    return replace(
        trace,
        events=table,
        step_marks=step_marks_of(table),
        collectives=tuple(
            CollectiveCall(row=row, operation="send_recv")
            for row in np.flatnonzero(table.role == Role.COMMUNICATION).tolist()
        ),
    )


def serialized(events: EventTable, rows: NDArray[np.intp]) -> tuple[Intervals, NDArray[np.intp]]:
    """Return (a device's ops as disjoint intervals, their rows). No op begins before all earlier ops have ended.

    `rows` are sorted by start. Ops that end before an earlier op ends, or have no length, are left out.
    """
    lowest = [np.iinfo(np.int64).min]
    earlier_end = np.concatenate([lowest, np.maximum.accumulate(events.end_ns[rows])[:-1]])[: len(rows)]  # may be empty
    start = np.maximum(events.start_ns[rows], earlier_end)
    lasting = start < events.end_ns[rows]
    return Intervals(start[lasting], events.end_ns[rows][lasting]), rows[lasting]


def _before_needs(process: Process, rows: NDArray[np.intp]) -> Intervals:
    """Return a device's pauses within steps before ops that need tensors from other devices.

    `rows` has the device's ops, here and in `_at_the_end`. Pauses shorter than `SHORT_PAUSE_NS` are overhead.
    """
    events = process.trace.events
    busy = union(Intervals(events.start_ns[rows], events.end_ns[rows]))
    if not len(busy):
        return busy
    pauses = complement(busy, int(busy.start[0]), int(busy.end[-1]))
    needs = distinct(events.start_ns[rows[process.needs_communication[rows]]])
    waits = among(pauses.end, needs) & (pauses.end - pauses.start >= SHORT_PAUSE_NS)
    return intersect(Intervals(pauses.start[waits], pauses.end[waits]), union(_steps(process)))


def _at_the_end(process: Process, rows: NDArray[np.intp]) -> Intervals:
    """Return waits for communication from a device's last op in a function (or step) to the end of the function.

    Such a time is a wait only if a communication of any device ended in it. If no function runs within a step, because
    the profiler recorded none, steps take the place of functions.
    """
    events = process.trace.events
    begin, end = functions(process)
    steps = _steps(process)
    if not len(intersect(union(Intervals(begin, end)), union(steps))):
        begin, end = steps.start, steps.end
    if not len(rows):
        return EMPTY
    slot = np.searchsorted(events.start_ns[rows], end) - 1
    last_end = np.minimum(np.maximum.accumulate(events.end_ns[rows])[np.maximum(slot, 0)], end)
    communicated = np.sort(events.end_ns[process.needs_communication])
    waits = (slot >= 0) & (last_end >= begin) & (end - last_end >= SHORT_PAUSE_NS)
    waits &= np.searchsorted(communicated, end) > np.searchsorted(communicated, last_end)
    return Intervals(last_end[waits], end[waits])


def _steps(process: Process) -> Intervals:
    events = process.trace.events
    marks = np.flatnonzero(events.role == Role.STEP_MARK)
    return Intervals(events.start_ns[marks], events.end_ns[marks])


def taken(events: EventTable, rows: NDArray[np.intp]) -> EventTable:
    """Return a table of these rows."""
    return replace(events, **{name: column[rows] for name, column in events.columns().items()})


def ops_of_thread(events: EventTable, rows: NDArray[np.intp], spans: Intervals, thread: int) -> EventTable:
    """Return the ops `rows` as operators of a thread, with `spans` as their times."""
    of_thread = np.full(len(rows), thread, events.thread.dtype)
    return replace(taken(events, rows), start_ns=spans.start, end_ns=spans.end, thread=of_thread)


def _calls(waits: Intervals, executor: Intervals, thread: int) -> EventTable:
    """Return a table with a thread's waits for communication, and with the executor's time as runtime calls."""
    count = len(waits) + len(executor)
    waiting = np.arange(count) < len(waits)
    return EventTable(
        kind=np.where(waiting, EventKind.OPERATOR, EventKind.RUNTIME).astype(np.uint8),
        name=np.where(waiting, 0, 1).astype(np.int32),
        start_ns=np.concatenate([waits.start, executor.start]),
        end_ns=np.concatenate([waits.end, executor.end]),
        thread=np.full(count, thread, np.int64),
        device=np.full(count, HOST, np.int16),
        correlation=np.full(count, NO_CORRELATION, np.int64),
        size_bytes=np.full(count, NO_SIZE, np.int64),
        role=np.where(waiting, Role.COMMUNICATION, Role.OTHER).astype(np.uint8),
        direction=np.full(count, Direction.NONE, np.uint8),
        host_memory=np.full(count, HostMemory.UNKNOWN, np.uint8),
        names=(COMMUNICATION_WAIT, EXECUTOR),
    )


def _joined(events: EventTable, ops: EventTable, calls: EventTable) -> EventTable:
    """Join three tables. `events` and `ops` have the same names."""
    calls = replace(calls, name=calls.name + np.int32(len(events.names)))
    tables = [table.columns() for table in (events, ops, calls)]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return in_order(columns, (*events.names, *calls.names))[0]
