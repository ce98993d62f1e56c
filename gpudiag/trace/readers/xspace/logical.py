"""One trace per logical device of a CPU, from the one of the process that trains on several of them.

A device's ops run on whichever of the executor's threads are free, while the training thread waits in its call of the
function. In a device's trace that thread does what the device did, and waits where an op could not begin before an
exchange had ended:

    executor   CPU:1 grad │ _Send ……… CPU:0 AddN ……… CPU:1 update
    trace 1    grad       │    waits for an exchange │ update

At its end a function, or a step of workers with a server, waits for all devices: what is left to the others then, once
an exchange is among it, is waited for too. The rest of the function's time is the executor's own.
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
)
from gpudiag.trace.readers.xspace.process import Process, step_marks_of
from gpudiag.trace.readers.xspace.waits import COMMUNICATION_WAIT, SHORT_PAUSE_NS, functions

#: What a function's run is called where no op of the device runs and none waits for an exchange.
EXECUTOR = "tf.executor"


def trace_per_logical_device(process: Process) -> tuple[Trace, ...]:
    """The traces of a process's logical devices, in order; the whole trace where it has but one."""
    devices = distinct(process.runs_on[process.runs_on >= 0]).tolist()
    if len(devices) < 2 or process.training_thread is None:
        return (process.trace,)
    traces = [_of_device(process, device, process.training_thread) for device in devices]
    return (traces[0], *(replace(trace, notes=()) for trace in traces[1:]))


def _of_device(process: Process, device: int, thread: int) -> Trace:
    trace, events = process.trace, process.trace.events
    mine = np.flatnonzero((process.runs_on == device) & (events.end_ns > events.start_ns))
    exchanging = events.role[mine] == Role.COMMUNICATION
    work, work_row = _one_after_another(events, mine[~exchanging])
    carried, carried_row = _one_after_another(events, mine[exchanging])
    left = subtract(carried, work)
    carried_row = carried_row[np.searchsorted(carried.start, left.start, side="right") - 1]
    waits = subtract(union(_before_needs(process, mine), _at_the_end(process, mine)), union(work, left))
    own = subtract(union(Intervals(*functions(process))), union(work, left, waits))
    kept = np.flatnonzero((events.thread == thread) | (events.kind == EventKind.OVERHEAD))
    # What the thread's calls span is what executors did for them.
    kept = kept[(events.kind[kept] != EventKind.OPERATOR) | (events.role[kept] == Role.INPUT)]
    ops = Intervals(np.concatenate([work.start, left.start]), np.concatenate([work.end, left.end]))
    op_rows = np.concatenate([work_row, carried_row])
    table = _joined(_part_of(events, kept), _ops(events, op_rows, ops, thread), _calls(waits, own, thread))
    return replace(
        trace,
        events=table,
        step_marks=step_marks_of(table),
        collectives=tuple(
            CollectiveCall(row=row, operation="send_recv")
            for row in np.flatnonzero(table.role == Role.COMMUNICATION).tolist()
        ),
    )


def _one_after_another(events: EventTable, rows: NDArray[np.intp]) -> tuple[Intervals, NDArray[np.intp]]:
    """Ops of one device as if on one thread, and their rows: of two at once the later begins when the other ends."""
    reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(events.end_ns[rows])[:-1]])[: len(rows)]
    start = np.maximum(events.start_ns[rows], reach)
    lasting = start < events.end_ns[rows]
    return Intervals(start[lasting], events.end_ns[rows][lasting]), rows[lasting]


def _before_needs(process: Process, rows: NDArray[np.intp]) -> Intervals:
    """The pauses of a device before ops that need what others sent, within the step."""
    events = process.trace.events
    busy = union(Intervals(events.start_ns[rows], events.end_ns[rows]))
    if not len(busy):
        return busy
    pauses = complement(busy, int(busy.start[0]), int(busy.end[-1]))
    needs = distinct(events.start_ns[rows[process.needs_communication[rows]]])
    waits = among(pauses.end, needs) & (pauses.end - pauses.start >= SHORT_PAUSE_NS)
    return intersect(Intervals(pauses.start[waits], pauses.end[waits]), union(_steps(process)))


def _at_the_end(process: Process, rows: NDArray[np.intp]) -> Intervals:
    """From the device's last op of a function, or of a step where the training thread runs none, to the end of that."""
    events = process.trace.events
    begin, end = functions(process)
    steps = _steps(process)
    if not len(intersect(union(Intervals(begin, end)), union(steps))):
        begin, end = steps.start, steps.end
    if not len(rows):
        return EMPTY
    slot = np.searchsorted(events.start_ns[rows], end) - 1
    reach = np.minimum(np.maximum.accumulate(events.end_ns[rows])[np.maximum(slot, 0)], end)
    exchanged = np.sort(events.end_ns[process.needs_communication])
    waits = (slot >= 0) & (reach >= begin) & (end - reach >= SHORT_PAUSE_NS)
    waits &= np.searchsorted(exchanged, end) > np.searchsorted(exchanged, reach)
    return Intervals(reach[waits], end[waits])


def _steps(process: Process) -> Intervals:
    events = process.trace.events
    marks = np.flatnonzero(events.role == Role.STEP_MARK)
    return Intervals(events.start_ns[marks], events.end_ns[marks])


def _part_of(events: EventTable, rows: NDArray[np.intp]) -> EventTable:
    return replace(events, **{name: column[rows] for name, column in events.columns().items()})


def _ops(events: EventTable, rows: NDArray[np.intp], spans: Intervals, thread: int) -> EventTable:
    """Parts of ops, as operators of a thread."""
    of_thread = np.full(len(rows), thread, events.thread.dtype)
    return replace(_part_of(events, rows), start_ns=spans.start, end_ns=spans.end, thread=of_thread)


def _calls(waits: Intervals, own: Intervals, thread: int) -> EventTable:
    """The waits of a thread for exchanges, and its calls that run what is not the device's."""
    count = len(waits) + len(own)
    waiting = np.arange(count) < len(waits)
    return EventTable(
        kind=np.where(waiting, EventKind.OPERATOR, EventKind.RUNTIME).astype(np.uint8),
        name=np.where(waiting, 0, 1).astype(np.int32),
        start_ns=np.concatenate([waits.start, own.start]),
        end_ns=np.concatenate([waits.end, own.end]),
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
    """One table: events and ops have the same names."""
    calls = replace(calls, name=calls.name + np.int32(len(events.names)))
    tables = [table.columns() for table in (events, ops, calls)]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    return EventTable(**{name: column[order] for name, column in columns.items()}, names=(*events.names, *calls.names))
