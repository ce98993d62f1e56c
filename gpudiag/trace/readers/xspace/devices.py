"""Split the trace of a process that drives several GPUs into one trace per GPU. Each GPU is a rank in the analysis.

A rank's trace has the GPU's work, the calls that launched this work, events around these calls, and events of the
training thread. Calls instead of threads are assigned to ranks, because TensorFlow launches work for different GPUs in
one thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpudiag.intervals import distinct
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
    in_order,
)
from gpudiag.trace.readers.names import count_unrecorded_graphs
from gpudiag.trace.readers.xspace.jax_devices import trace_per_cpu_device
from gpudiag.trace.readers.xspace.logical import trace_per_logical_device
from gpudiag.trace.readers.xspace.process import Process, step_marks_of
from gpudiag.trace.readers.xspace.waits import (
    AddedWaits,
    executor_waits,
    joined_waits,
    split_jax_waits,
    unrecorded_jax_waits,
)


def trace_per_device(process: Process) -> tuple[Trace, ...]:
    """Return a trace without rank for each GPU of a process, by ordinal; if there are none, for each logical device."""
    events = process.trace.events
    work = events.rows_of(*DEVICE_WORK)
    launches = (events.kind == EventKind.RUNTIME) & (events.correlation != NO_CORRELATION)
    launched = distinct(process.launches_on[launches])
    if not len(work):
        # Keep one trace if device work was launched but not recorded, because such a process does not train on CPUs.
        if (launched != HOST).any() or process.trace.unread_devices:
            return (process.trace,)
        of_jax = process.trace.framework == "jax"
        return trace_per_cpu_device(process) if of_jax else trace_per_logical_device(process)
    # A device without recorded work gets a trace too if work was launched on it.
    devices = [int(device) for device in np.union1d(events.device[work], launched) if device != HOST]
    overhead = events.rows_of(EventKind.OVERHEAD)
    delayed = _delayed_devices(process, overhead)
    threads = _launching_threads(process)
    return tuple(  # overhead that delayed an unknown GPU counts for every GPU
        _device_trace(process, device, threads, overhead[(delayed == device) | (delayed == HOST)]) for device in devices
    )


class _LaunchingThread(msgspec.Struct, frozen=True):
    """Rows of the calls of a launching thread, and of its other events with a duration."""

    calls: NDArray[np.intp]
    others: NDArray[np.intp]


def _launching_threads(process: Process) -> tuple[_LaunchingThread, ...]:
    """Return the host threads with a call that gives work to a GPU."""
    events = process.trace.events
    on_host = np.flatnonzero((events.device == HOST) & (events.end_ns > events.start_ns))
    order = on_host[np.argsort(events.thread[on_host], kind="stable")]
    cuts = np.flatnonzero(np.diff(events.thread[order])) + 1
    threads = []
    for rows in np.split(order, cuts):  # the rows of one thread
        kind = events.kind[rows]
        calls = rows[kind == EventKind.RUNTIME]
        if (process.launches_on[calls] != HOST).any():
            others = (kind != EventKind.RUNTIME) & (kind != EventKind.OVERHEAD)
            threads.append(_LaunchingThread(calls, rows[others]))
    return tuple(threads)


def _device_trace(
    process: Process, device: int, threads: tuple[_LaunchingThread, ...], overhead: NDArray[np.intp]
) -> Trace:
    """Return the trace of GPU `device`: its work, the calls that launched it, and the events around these calls.

    The trace also has the events of the training thread, recorded waits, and `overhead`.
    Of the training thread, calls for other GPUs and events of zero length are left out. JAX's recorded waits are calls
    that launch nothing, and are kept for all GPUs. `overhead` has the rows of the profiler's overhead that delayed the
    GPU's calls.
    """
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
        if trace.framework == "jax":
            kept[training[lasting & (events.role[training] == Role.SYNCHRONIZATION)]] = True
    if trace.framework == "jax":
        split, parts = split_jax_waits(process, calls)
        kept[split] = False
        waits = joined_waits(unrecorded_jax_waits(process, device, calls), parts)
    else:
        waits = executor_waits(process, device, calls)
    rows = np.flatnonzero(kept)
    table, position = _with_waits(events, rows, waits, _waiting_thread(process, calls))
    return replace(
        trace,
        events=table,
        unrecorded_graphs=count_unrecorded_graphs(table),
        step_marks=step_marks_of(table),
        device_names={device: trace.device_names[device]} if device in trace.device_names else {},
        collectives=tuple(
            replace(call, row=int(position[np.searchsorted(rows, call.row)]))
            for call in trace.collectives
            if events.device[call.row] == device
        ),
    )


def _waiting_thread(process: Process, calls: NDArray[np.intp]) -> int:
    """Return the thread that the waits block: the training thread, or if unknown, that of the first call, or else 0."""
    if process.training_thread is not None:
        return process.training_thread
    return int(process.trace.events.thread[calls[0]]) if len(calls) else 0


def _with_waits(
    events: EventTable, rows: NDArray[np.intp], waits: AddedWaits, thread: int
) -> tuple[EventTable, NDArray[np.intp]]:
    """Return (table of these rows and of the waits as blocking calls of `thread`, position of each row in it)."""
    index = {name: position for position, name in enumerate(events.names)}
    added: dict[str, Any] = {
        "kind": EventKind.RUNTIME,
        "name": [index.setdefault(name, len(index)) for name in waits.name],
        "start_ns": waits.spans.start,
        "end_ns": waits.spans.end,
        "thread": thread,
        "device": HOST,
        "correlation": NO_CORRELATION,
        "size_bytes": NO_SIZE,
        "role": waits.role,
        "direction": Direction.NONE,
        "host_memory": HostMemory.UNKNOWN,
    }
    columns = {
        field: np.concatenate([column[rows], np.full(len(waits.role), added[field], column.dtype)])
        for field, column in events.columns().items()
    }
    return in_order(columns, tuple(index))


def _around_calls(process: Process, thread: _LaunchingThread, device: int) -> NDArray[np.intp]:
    """Return a thread's events, except those around calls for other GPUs only; none if it never calls GPU `device`."""
    events = process.trace.events
    for_device = process.launches_on[thread.calls] == device
    if not for_device.any():
        return np.empty(0, np.intp)
    start = events.start_ns[thread.calls]
    # Calls `first` to `after` - 1 begin within an event. `count[i]` of the first i calls are for the device.
    count = np.concatenate([[0], np.cumsum(for_device)])
    first = np.searchsorted(start, events.start_ns[thread.others], side="left")
    after = np.searchsorted(start, events.end_ns[thread.others], side="left")
    return thread.others[(count[after] > count[first]) | (after <= first)]


def _delayed_devices(process: Process, overhead: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return int64[k]: the GPU whose launch each overhead of the profiler delayed; `HOST` if unknown.

    CUPTI and TensorFlow identify the same thread by different numbers. A delayed launch encloses its overhead.
    Therefore each thread of CUPTI is matched to the thread whose launches enclose most of its overhead.
    """
    events = process.trace.events
    device = np.full(len(overhead), HOST, np.int64)
    if not len(overhead):
        return device
    launches = list(_launches_by_thread(process))
    enclosing = np.array([_enclosing_call(events, calls, overhead) for calls in launches])
    enclosing = enclosing.reshape(len(launches), len(overhead))
    for thread in distinct(events.thread[overhead]):
        on_thread = np.flatnonzero(events.thread[overhead] == thread)
        counts = (enclosing[:, on_thread] >= 0).sum(axis=1)
        if not len(counts) or counts.max() == 0:
            continue
        calls = enclosing[int(counts.argmax()), on_thread]
        device[on_thread] = np.where(calls >= 0, process.launches_on[np.maximum(calls, 0)], HOST)
    return device


def _launches_by_thread(process: Process) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of launching calls, thread by thread."""
    events = process.trace.events
    calls = np.flatnonzero(process.launches_on != HOST)
    for thread in distinct(events.thread[calls]):
        yield calls[events.thread[calls] == thread]


def _enclosing_call(events: EventTable, calls: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return intp[n]: the call among `calls` (of one thread) that encloses each row, or -1."""
    slot = np.searchsorted(events.start_ns[calls], events.start_ns[rows], side="right") - 1
    call = calls[np.maximum(slot, 0)]
    inside = (slot >= 0) & (events.end_ns[call] >= events.end_ns[rows])
    return np.where(inside, call, -1)
