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

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, complement, intersect, subtract, union
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
from gpudiag.trace.readers.xspace.waits import EXCHANGE_WAIT, SHORT_PAUSE_NS, functions

#: What a function's run is called where no op of the device runs and none waits for an exchange.
EXECUTOR = "tf.executor"


def trace_per_logical_device(process: Process) -> tuple[Trace, ...]:
    """The traces of a process's logical devices, in order; the whole trace where it has but one."""
    devices = np.unique(process.runs_on[process.runs_on >= 0]).tolist()
    if len(devices) < 2 or process.training_thread is None:
        return (process.trace,)
    return tuple(_of_device(process, device, process.training_thread) for device in devices)


def _of_device(process: Process, device: int, thread: int) -> Trace:
    trace, events = process.trace, process.trace.events
    mine = np.flatnonzero((process.runs_on == device) & (events.end_ns > events.start_ns))
    exchanging = events.role[mine] == Role.EXCHANGE
    work, work_row = _one_after_another(events, mine[~exchanging])
    carried, carried_row = _one_after_another(events, mine[exchanging])
    left = subtract(carried, work)
    carried_row = carried_row[np.searchsorted(carried.start, left.start, side="right") - 1]
    waits = subtract(union(_before_needs(process, mine), _at_the_end(process, mine)), union(work, left))
    own = subtract(union(Intervals(*functions(process))), union(work, left, waits))
    kept = np.flatnonzero((events.thread == thread) | (events.kind == EventKind.OVERHEAD))
    # What the thread's calls span is what executors did for them.
    kept = kept[(events.kind[kept] != EventKind.OPERATOR) | (events.role[kept] == Role.INPUT)]
    table = _joined(events, kept, thread, ((work, work_row), (left, carried_row)), waits, own)
    return replace(
        trace,
        events=table,
        step_marks=step_marks_of(table),
        collectives=tuple(
            CollectiveCall(row=row, operation="send_recv")
            for row in np.flatnonzero(table.role == Role.EXCHANGE).tolist()
        ),
    )


def _one_after_another(events: EventTable, rows: NDArray[np.intp]) -> tuple[Intervals, NDArray[np.intp]]:
    """Ops of one device as if on one thread, and their rows: of two at a time the later one begins when the other ends."""
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
    needs = np.unique(events.start_ns[rows[process.needs_exchange[rows]]])
    waits = np.isin(pauses.end, needs) & (pauses.end - pauses.start >= SHORT_PAUSE_NS)
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
    exchanged = np.sort(events.end_ns[process.needs_exchange])
    waits = (slot >= 0) & (reach >= begin) & (end - reach >= SHORT_PAUSE_NS)
    waits &= np.searchsorted(exchanged, end) > np.searchsorted(exchanged, reach)
    return Intervals(reach[waits], end[waits])


def _steps(process: Process) -> Intervals:
    events = process.trace.events
    marks = np.flatnonzero(events.role == Role.STEP_MARK)
    return Intervals(events.start_ns[marks], events.end_ns[marks])


def _joined(
    events: EventTable,
    kept: NDArray[np.intp],
    thread: int,
    parts: tuple[tuple[Intervals, NDArray[np.intp]], ...],
    waits: Intervals,
    own: Intervals,
) -> EventTable:
    """Rows as they are; parts of rows as operators of the training thread; its waits; and calls of the executor's own."""
    spans = [spans for spans, _ in parts]
    start = np.concatenate([events.start_ns[kept], *(part.start for part in (*spans, waits, own))])
    end = np.concatenate([events.end_ns[kept], *(part.end for part in (*spans, waits, own))])
    order = np.lexsort((-end, start))
    rows = np.concatenate([rows for _, rows in parts])

    def column(values: NDArray[Any], ops: int | None, waiting: int, calling: int) -> NDArray[Any]:
        """The column of the rows; what ops have, or their rows where that is None; what waits and calls have."""
        of_ops = values[rows] if ops is None else np.full(len(rows), ops, values.dtype)
        added = (np.full(len(part), value, values.dtype) for part, value in ((waits, waiting), (own, calling)))
        return np.concatenate([values[kept], of_ops, *added])[order]

    return EventTable(
        kind=column(events.kind, EventKind.OPERATOR, EventKind.OPERATOR, EventKind.RUNTIME),
        name=column(events.name, None, len(events.names), len(events.names) + 1),
        start_ns=start[order],
        end_ns=end[order],
        thread=column(events.thread, thread, thread, thread),
        device=column(events.device, HOST, HOST, HOST),
        correlation=column(events.correlation, *(NO_CORRELATION,) * 3),
        size_bytes=column(events.size_bytes, *(NO_SIZE,) * 3),
        role=column(events.role, None, Role.EXCHANGE, Role.OTHER),
        direction=column(events.direction, *(Direction.NONE,) * 3),
        host_memory=column(events.host_memory, *(HostMemory.UNKNOWN,) * 3),
        names=(*events.names, EXCHANGE_WAIT, EXECUTOR),
    )
