"""One trace per GPU, from the one of the process that drives them all: in the analysis each GPU is a rank.

A rank's trace has the GPU's own work, the calls that launched it, and of the host what concerns it: the training
thread, and what the threads that launch on it did around those calls. Executor threads serve one GPU in one step and
another in the next, so it is calls, not threads, that are shared out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct
from gpudiag.model.event import (
    DEVICE_WORK,
    HOST,
    NO_CORRELATION,
    NO_SIZE,
    Direction,
    EventKind,
    EventTable,
    HostMemory,
    Role,
    Trace,
)
from gpudiag.trace.readers.cuda_calls import count_unrecorded_graphs
from gpudiag.trace.readers.xspace.logical import trace_per_logical_device
from gpudiag.trace.readers.xspace.process import Process, step_marks_of
from gpudiag.trace.readers.xspace.waits import COMMUNICATION_WAIT, DEVICE_WAIT, executor_waits


def trace_per_device(process: Process) -> tuple[Trace, ...]:
    """The traces of a process's GPUs by their ordinals; without any, of its logical devices. Ranks are unset."""
    events = process.trace.events
    work = events.rows_of(*DEVICE_WORK)
    launches = (events.kind == EventKind.RUNTIME) & (events.correlation != NO_CORRELATION)
    launched = distinct(process.launches_on[launches])
    if not len(work):
        # Launched and not recorded is no CPU's work.
        whole = (launched != HOST).any() or process.trace.unread_devices
        return (process.trace,) if whole else trace_per_logical_device(process)
    # Also those of which no work was recorded, although it was launched.
    devices = [int(device) for device in np.union1d(events.device[work], launched) if device != HOST]
    overhead = events.rows_of(EventKind.OVERHEAD)
    behind = _devices_behind(process, overhead)
    threads = _launching_threads(process)
    return tuple(
        _of_device(process, device, threads, overhead[(behind == device) | (behind == HOST)]) for device in devices
    )


class _Thread(msgspec.Struct, frozen=True):
    """What a thread that launches does: rows of its calls, and of what else lasted a while on it."""

    calls: NDArray[np.intp]
    others: NDArray[np.intp]


def _launching_threads(process: Process) -> tuple[_Thread, ...]:
    events = process.trace.events
    on_host = np.flatnonzero((events.device == HOST) & (events.end_ns > events.start_ns))
    order = on_host[np.argsort(events.thread[on_host], kind="stable")]
    cuts = np.flatnonzero(np.diff(events.thread[order])) + 1
    threads = []
    for rows in np.split(order, cuts):
        kind = events.kind[rows]
        calls = rows[kind == EventKind.RUNTIME]
        if (process.launches_on[calls] != HOST).any():
            others = (kind != EventKind.RUNTIME) & (kind != EventKind.OVERHEAD)
            threads.append(_Thread(calls, rows[others]))
    return tuple(threads)


def _of_device(process: Process, device: int, threads: tuple[_Thread, ...], overhead: NDArray[np.intp]) -> Trace:
    trace, events = process.trace, process.trace.events
    kept = np.zeros(len(events), np.bool_)
    kept[events.device == device] = True
    kept[overhead] = True
    calls = np.flatnonzero((events.kind == EventKind.RUNTIME) & (process.launches_on == device))
    kept[calls] = True
    for thread in threads:
        kept[_around_calls(process, thread, device)] = True
    if process.training_thread is not None:
        training = np.flatnonzero((events.thread == process.training_thread) & (events.device == HOST))
        lasting = events.end_ns[training] > events.start_ns[training]
        kept[training[lasting & (events.kind[training] != EventKind.RUNTIME)]] = True
    rows = np.flatnonzero(kept)
    waits, roles = executor_waits(process, device, calls)
    table, place = _with_waits(events, rows, waits, roles, _waiting_thread(process, calls))
    return replace(
        trace,
        events=table,
        unrecorded_graphs=count_unrecorded_graphs(table),
        step_marks=step_marks_of(table),
        device_names={device: trace.device_names[device]} if device in trace.device_names else {},
        collectives=tuple(
            replace(call, row=int(place[np.searchsorted(rows, call.row)]))
            for call in trace.collectives
            if events.device[call.row] == device
        ),
    )


def _waiting_thread(process: Process, calls: NDArray[np.intp]) -> int:
    """The thread that is blocked meanwhile: the training thread, inside the function call that it made."""
    if process.training_thread is not None:
        return process.training_thread
    return int(process.trace.events.thread[calls[0]]) if len(calls) else 0


def _with_waits(
    events: EventTable, rows: NDArray[np.intp], waits: Intervals, roles: NDArray[np.uint8], thread: int
) -> tuple[EventTable, NDArray[np.intp]]:
    """The table of these rows and of waits, as calls that block; and where each row of them now is."""
    count = len(waits)
    start = np.concatenate([events.start_ns[rows], waits.start])
    end = np.concatenate([events.end_ns[rows], waits.end])
    order = np.lexsort((-end, start))

    def column(values: NDArray[Any], added: int | NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values[rows], np.full(count, added, values.dtype)])[order]

    table = EventTable(
        kind=column(events.kind, EventKind.RUNTIME),
        name=column(events.name, len(events.names) + (roles == Role.COMMUNICATION)),
        start_ns=start[order],
        end_ns=end[order],
        thread=column(events.thread, thread),
        device=column(events.device, HOST),
        correlation=column(events.correlation, NO_CORRELATION),
        size_bytes=column(events.size_bytes, NO_SIZE),
        role=column(events.role, roles),
        direction=column(events.direction, Direction.NONE),
        host_memory=column(events.host_memory, HostMemory.UNKNOWN),
        names=(*events.names, DEVICE_WAIT, COMMUNICATION_WAIT),
    )
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    return table, place


def _around_calls(process: Process, thread: _Thread, device: int) -> NDArray[np.intp]:
    """Of the events of one thread those around a call for this GPU, or, if it launches there, around no call at all."""
    events = process.trace.events
    mine = process.launches_on[thread.calls] == device
    if not mine.any():
        return np.empty(0, np.intp)
    start = events.start_ns[thread.calls]
    of_device = np.concatenate([[0], np.cumsum(mine)])
    first = np.searchsorted(start, events.start_ns[thread.others], side="left")
    after = np.searchsorted(start, events.end_ns[thread.others], side="left")
    return thread.others[(of_device[after] > of_device[first]) | (after <= first)]


def _devices_behind(process: Process, overhead: NDArray[np.intp]) -> NDArray[np.int64]:
    """int64[k]: for which GPU's launch the profiler held a thread up; `HOST` where that cannot be told.

    CUPTI names threads by the operating system's numbers, TensorFlow by its own. A launch that is held up lies around
    the hold-up: of all threads, the one of which that is true most often is the same thread.
    """
    events = process.trace.events
    device = np.full(len(overhead), HOST, np.int64)
    if not len(overhead):
        return device
    launches = list(_launches_by_thread(process))
    around = np.array([_around(events, calls, overhead) for calls in launches]).reshape(len(launches), len(overhead))
    for held in distinct(events.thread[overhead]):
        mine = np.flatnonzero(events.thread[overhead] == held)
        counts = (around[:, mine] >= 0).sum(axis=1)
        if not len(counts) or counts.max() == 0:
            continue
        calls = around[int(counts.argmax()), mine]
        device[mine] = np.where(calls >= 0, process.launches_on[np.maximum(calls, 0)], HOST)
    return device


def _launches_by_thread(process: Process) -> Iterator[NDArray[np.intp]]:
    """Rows of the calls that launch something, thread by thread."""
    events = process.trace.events
    calls = np.flatnonzero(process.launches_on != HOST)
    for thread in distinct(events.thread[calls]):
        yield calls[events.thread[calls] == thread]


def _around(events: EventTable, calls: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each row the call of one thread that it lies within, or -1."""
    slot = np.searchsorted(events.start_ns[calls], events.start_ns[rows], side="right") - 1
    call = calls[np.maximum(slot, 0)]
    inside = (slot >= 0) & (events.end_ns[call] >= events.end_ns[rows])
    return np.where(inside, call, -1)


def ranked(groups: list[tuple[int | None, tuple[Trace, ...]]], world_size: int | None) -> tuple[Trace, ...]:
    """Traces of several processes with their ranks.

    Args:
        groups: of each process the rank that its file's name claims, or None, and its traces. A process with one GPU
            has that rank; else ranks count on through the processes, in the order given.
        world_size: number of ranks where it is known.
    """
    total = sum(len(traces) for _, traces in groups)
    found: list[Trace] = []
    following = 0
    for claimed, traces in groups:
        first = claimed if claimed is not None and len(traces) == 1 else following
        found.extend(
            replace(trace, rank=first + position, world_size=world_size or max(total, first + len(traces)))
            for position, trace in enumerate(traces)
        )
        following = first + len(traces)
    return tuple(found)
