"""Split the trace of a JAX process that computes on CPU devices into one trace per device.

Threads of a pool run a device's operations, while the main thread dispatches the next functions or waits for a value.
In a device's trace, the main thread runs the device's XLA modules, and waits inside them for collectives:

    main thread    PjitFunction(train_step) │ np.asarray(jax.Array) ····················│ load the next batch
    pool           ·········· jit_train_step of CPU:1: dot │ tanh │ all-reduce │ fusion │
    trace 1        dispatch   │ jit_train_step ··········· waits ·········│

A main thread that reads no values runs ahead of its devices. A step of a device's trace therefore begins at its mark,
or later, when the device has ended the work of earlier steps.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct, outermost, union, within
from gpudiag.model.event import EventKind, EventTable, Role, Trace, in_order
from gpudiag.trace.readers.names import events_named
from gpudiag.trace.readers.xspace.jax_host import called_function, compiles, dispatches, module_function
from gpudiag.trace.readers.xspace.logical import ops_of_thread, serialized, taken
from gpudiag.trace.readers.xspace.process import NO_NAME, Process, step_marks_of

Rows = NDArray[np.intp]
Times = NDArray[np.int64]

#: Maximum number of CPU devices of a process, because the main thread's events are copied for each device.
_MOST_DEVICES = 1024


class _ModuleRuns(msgspec.Struct, frozen=True):
    """Runs of XLA modules on one device, as columns of length k, sorted by start.

    Attributes:
        row: row of each run's first operation.
        start, end: times in ns. A run begins when its call and the previous run have ended, at the latest with its
            first operation.
        dispatched: begin of the call that dispatched the run; begin of the first operation if the call is unknown.
    """

    row: Rows
    start: Times
    end: Times
    dispatched: Times


def trace_per_cpu_device(process: Process) -> tuple[Trace, ...]:
    """Return the traces of a process's CPU devices, in order; the whole trace if no device ran an XLA module.

    A trace of more than `_MOST_DEVICES` devices is damaged, and is returned whole.
    """
    on_device = (process.runs_on >= 0) & (process.module != NO_NAME)
    devices = distinct(process.runs_on[on_device]).tolist()
    if not 0 < len(devices) <= _MOST_DEVICES or process.training_thread is None:
        return (process.trace,)
    main = _main_thread(process, process.training_thread)
    rows = [np.flatnonzero(on_device & (process.runs_on == device)) for device in devices]
    traces = [_device_trace(process, device_rows, main, only_device=len(devices) == 1) for device_rows in rows]
    return (traces[0], *(replace(trace, notes=()) for trace in traces[1:]))  # the process's notes are reported once


def _main_thread(process: Process, thread: int) -> EventTable:
    """Return the main thread's events, with dispatches as runtime calls, and compilations and waits as annotations.

    Each outermost call of a function is added as an annotation, so that reports can name the function. Operations of
    modules, which a CPU device may run on this thread too, are left out.
    """
    events = process.trace.events
    main = taken(events, np.flatnonzero((events.thread == thread) & (process.module == NO_NAME)))
    operator = main.kind == EventKind.OPERATOR
    dispatching, compiling = events_named(main, dispatches), events_named(main, compiles)
    spans = union(Intervals(main.start_ns[dispatching], main.end_ns[dispatching]))
    kind = main.kind.copy()
    kind[operator & within(spans, main.start_ns)] = EventKind.RUNTIME
    kind[(operator & compiling) | (main.role == Role.SYNCHRONIZATION)] = EventKind.ANNOTATION
    role = np.where(operator & (kind == EventKind.ANNOTATION), np.uint8(Role.OTHER), main.role)
    role[kind == EventKind.RUNTIME] = Role.LAUNCH
    main = replace(main, kind=kind, role=role)
    calls = _outermost_calls(main)
    calls_as_ranges = taken(main, calls[main.kind[calls] == EventKind.RUNTIME])
    count = len(calls_as_ranges)
    ranges = replace(
        calls_as_ranges, kind=np.full(count, EventKind.ANNOTATION, np.uint8), role=np.full(count, Role.OTHER, np.uint8)
    )
    return _joined(main, ranges)[0]


def _outermost_calls(main: EventTable) -> Rows:
    calls = np.flatnonzero(events_named(main, called_function))
    return calls[outermost(main.start_ns[calls], main.end_ns[calls])]


def _joined(*tables: EventTable) -> tuple[EventTable, Rows]:
    """Join tables with the same names; return (table, row in it of each row of the given tables, in their order)."""
    columns = [table.columns() for table in tables]
    return in_order({field: np.concatenate([c[field] for c in columns]) for field in columns[0]}, tables[0].names)


def _device_trace(process: Process, rows: Rows, main: EventTable, *, only_device: bool) -> Trace:
    """Return the trace of one device, in which the main thread runs the device's modules and operations.

    Args:
        process: the process; its training thread is known.
        rows: rows of the device's operations.
        main: the main thread's events, from `_main_thread`.
        only_device: whether the process has no other device. Then the main thread's waits are for this device, and the
            device's runs last to the end of a wait. For which of several devices the thread waits is unknown.
    """
    trace, events = process.trace, process.trace.events
    thread = process.training_thread or 0
    # Operations of zero length occupy no device, and a run with only such operations would have no length.
    rows = rows[events.end_ns[rows] > events.start_ns[rows]]
    runs = _runs(process, rows, main)
    if only_device:
        runs = _until_read(runs, main)
    modules = ops_of_thread(events, runs.row, Intervals(runs.start, runs.end), thread)
    modules = replace(modules, name=process.module[runs.row], role=np.full(len(runs.row), Role.OPERATOR, np.uint8))
    # Collectives and other operations overlap, because several threads of the pool run them. `serialized` cuts
    # overlapping events, so each kind is serialized apart, to keep its time.
    communicates = events.role[rows] == Role.COMMUNICATION
    operations, operation_row = serialized(events, rows[~communicates])
    collectives, collective_row = serialized(events, rows[communicates])
    table, position = _joined(
        _with_marks_when_free(main, runs),
        modules,
        ops_of_thread(events, operation_row, operations, thread),
        ops_of_thread(events, collective_row, collectives, thread),
    )
    # The collectives were joined last. The table has no collectives of other devices, and none without length.
    first_collective = len(position) - len(collective_row)
    row_in_table = dict(zip(collective_row.tolist(), position[first_collective:].tolist(), strict=True))
    calls = [replace(call, row=row_in_table[call.row]) for call in trace.collectives if call.row in row_in_table]
    return replace(
        trace,
        events=table,
        step_marks=step_marks_of(table),
        collectives=tuple(sorted(calls, key=lambda call: call.row)),
    )


def _runs(process: Process, rows: Rows, main: EventTable) -> _ModuleRuns:
    """Return the module runs to which the operations `rows` of one device belong, as spans without overlap.

    Runs that an earlier run covers completely are left out. `main` has the calls that dispatched the runs.
    """
    events = process.trace.events
    run = process.run[rows]
    # Operations without the number of their run count as one run each.
    run = np.where(run == 0, np.iinfo(np.int64).max - np.arange(len(run)), run)
    number, first, member = np.unique(run, return_index=True, return_inverse=True)
    end = np.full(len(number), np.iinfo(np.int64).min)
    np.maximum.at(end, member, events.end_ns[rows])
    order = np.argsort(first, kind="stable")  # `rows` are sorted by start, and so are runs
    row, end = rows[first[order]], end[order]
    # A run that begins before an earlier run has ended gets only the time after the earlier run.
    earlier_end = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]])[: len(end)]
    start = np.maximum(events.start_ns[row], earlier_end)
    kept = start < end
    row, start, end, earlier_end = row[kept], start[kept], end[kept], earlier_end[kept]
    dispatched, returned = _dispatched(process, row, main)
    return _ModuleRuns(row, np.minimum(start, np.maximum(earlier_end, returned)), end, dispatched)


def _dispatched(process: Process, row: Rows, main: EventTable) -> tuple[Times, Times]:
    """Return (begin, end) of the call that dispatched each run: the n-th run of a module belongs to the n-th call.

    `row` has each run's first operation. If there are more runs than calls, the recording began with queued runs, and
    the first runs have no call. If there are fewer runs, the recording ended before the last runs. For a run that has
    no call, or began before its call, both times are the begin of the run's first operation.
    """
    begin = process.trace.events.start_ns[row]
    end = begin.copy()
    calls = _outermost_calls(main)
    functions = np.array([called_function(main.name_of(call)) or "" for call in calls.tolist()], np.str_)
    names = process.trace.events.names
    for module in distinct(process.module[row]).tolist():
        runs = np.flatnonzero(process.module[row] == module)
        called = calls[functions == module_function(names[module])]
        if len(called) < len(runs):
            runs = runs[len(runs) - len(called) :]
        called = called[: len(runs)]
        end[runs] = np.where(main.start_ns[called] <= begin[runs], main.end_ns[called], begin[runs])
        begin[runs] = np.minimum(main.start_ns[called], begin[runs])
    return begin, end


def _until_read(runs: _ModuleRuns, main: EventTable) -> _ModuleRuns:
    """Return the only device's runs. A run that ends within a wait of the main thread is extended to the wait's end."""
    waits = np.flatnonzero(main.role == Role.SYNCHRONIZATION)
    wait_start, wait_end = main.start_ns[waits], main.end_ns[waits]
    end = runs.end.copy()
    last = np.searchsorted(runs.start, wait_end) - 1  # the last run that began before each wait ended
    ended_inside = np.flatnonzero((last >= 0) & (end[np.maximum(last, 0)] > wait_start))
    end[last[ended_inside]] = np.maximum(end[last[ended_inside]], wait_end[ended_inside])
    return _ModuleRuns(runs.row, runs.start, end, runs.dispatched)


def _with_marks_when_free(main: EventTable, runs: _ModuleRuns) -> EventTable:
    """Return the main thread's events with step marks that begin when the device has ended the earlier steps' runs.

    A mark also lasts until the runs that its step dispatched have ended.
    """
    marks = np.flatnonzero(main.role == Role.STEP_MARK)
    order = np.argsort(runs.dispatched, kind="stable")
    # `ended[k]` is the time at which the k runs that were dispatched first have ended.
    ended = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, runs.end[order]))
    start, end = main.start_ns.copy(), main.end_ns.copy()
    step_end = np.append(start[marks][1:], np.iinfo(np.int64).max)
    earlier = ended[np.searchsorted(runs.dispatched[order], start[marks])]
    within_step = ended[np.searchsorted(runs.dispatched[order], step_end)]
    start[marks] = np.maximum(start[marks], earlier)
    end[marks] = np.maximum(end[marks], np.maximum(within_step, start[marks]))
    return replace(main, start_ns=start, end_ns=end)
