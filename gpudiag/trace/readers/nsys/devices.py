"""Split the trace of a process whose devices communicate with each other into one trace per device.

Such a process (JAX, TensorFlow, `ncclCommInitAll`) drives each device as a separate rank. Traces of PyTorch stay whole,
because a process with DataParallel is one rank that uses several devices.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import DEVICE_WORK, HOST, NO_NUMBER, EventKind, EventTable, EventWaits, Role, Trace
from gpudiag.trace.readers.names import count_unrecorded_graphs
from gpudiag.trace.readers.nsys.nvtx_names import ONE_RANK_PER_PROCESS

Rows = NDArray[np.intp]


def trace_per_device(trace: Trace) -> Iterator[tuple[int, Trace]]:
    """Yield (device, trace) per device with work if several devices communicate, else (busiest device, whole trace).

    Without device work, the device is 0.
    """
    events = trace.events
    work = events.rows_of(*DEVICE_WORK)
    communicating = events.device[work[events.role[work] == Role.COMMUNICATION]]
    if trace.framework in ONE_RANK_PER_PROCESS or len(distinct(communicating)) < 2:
        yield int(np.argmax(np.bincount(events.device[work]))) if len(work) else 0, trace
        return
    called = _devices_of_calls(events, work)
    busiest = _devices_of_threads(events, called)
    for device in distinct(events.device[work]).tolist():
        yield device, _device_trace(trace, device, called, busiest)


def _devices_of_calls(events: EventTable, work: Rows) -> NDArray[np.int16]:
    """Return int16[n]: the device for which each call launched work; `HOST` for all other events."""
    called = np.full(len(events), HOST, np.int16)
    calls = events.rows_of(EventKind.RUNTIME)
    launched = events.rows_with(events.correlation[calls], work)
    known = launched != NO_NUMBER
    called[calls[known]] = events.device[launched[known]]
    return called


def _devices_of_threads(events: EventTable, called: NDArray[np.int16]) -> dict[int, int]:
    """Return thread → the device for which it launched most work."""
    launching = called != HOST
    counts: dict[int, tuple[int, int]] = {}
    pairs, numbers = np.unique(
        np.column_stack([events.thread[launching], called[launching]]), axis=0, return_counts=True
    )
    for (thread, device), count in zip(pairs.tolist(), numbers.tolist(), strict=True):
        counts[thread] = max(counts.get(thread, (0, 0)), (count, device))
    return {thread: device for thread, (_, device) in counts.items()}


def _device_trace(trace: Trace, device: int, called: NDArray[np.int16], busiest: dict[int, int]) -> Trace:
    """Return a trace of a device's work, the calls that launched it, and other events of threads that serve the device.

    Ranges of the thread with the step marks belong to all devices. `called` is from `_devices_of_calls`, and `busiest`
    from `_devices_of_threads`; threads that launch nothing serve all devices.
    """
    events = trace.events
    other_threads = [thread for thread, served in busiest.items() if served != device]
    other = (events.device == HOST) & (called == HOST)
    kept = (events.device == device) | (called == device) | (other & ~np.isin(events.thread, other_threads))
    for marks in trace.step_marks[:1]:  # the preferred kind
        marking = np.isin(events.thread, events.thread[marks.row]) & (events.kind != EventKind.RUNTIME)
        kept |= other & marking
    rows = np.flatnonzero(kept)
    position = np.full(len(events), NO_NUMBER, np.int64)
    position[rows] = np.arange(len(rows))
    table = msgspec.structs.replace(events, **{name: column[rows] for name, column in events.columns().items()})
    return msgspec.structs.replace(
        trace,
        events=table,
        rank=None,  # MPI's rank is that of the whole process
        device_names={device: trace.device_names[device]} if device in trace.device_names else {},
        collectives=tuple(
            msgspec.structs.replace(call, row=int(position[call.row]))
            for call in trace.collectives
            if events.device[call.row] == device
        ),
        step_marks=tuple(
            msgspec.structs.replace(marks, row=position[marks.row[held]].astype(np.intp), number=marks.number[held])
            for marks in trace.step_marks
            if (held := position[marks.row] != NO_NUMBER).any()
        ),
        event_waits=_waits(trace.event_waits, position),
        unrecorded_graphs=count_unrecorded_graphs(table),
    )


def _waits(waits: EventWaits, position: NDArray[np.int64]) -> EventWaits:
    """Return the waits whose calls are kept, with rows replaced by `position[row]` (`NO_NUMBER` for omitted rows).

    The row of an omitted record call becomes `NO_NUMBER`, which means unknown.
    """
    if not len(waits):
        return waits
    held = position[waits.call] != NO_NUMBER
    record = np.where(waits.record == NO_NUMBER, NO_NUMBER, position[np.maximum(waits.record, 0)])
    return EventWaits(
        call=position[waits.call][held],
        device=waits.device[held],
        stream=waits.stream[held],
        record=record[held],
        recorded_stream=waits.recorded_stream[held],
        event=waits.event[held],
    )
