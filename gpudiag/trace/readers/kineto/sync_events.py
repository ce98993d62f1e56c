"""What `cuda_sync` events tell: which stream or host call waits for which CUDA event, and which call recorded that.

PyTorch writes them where `enable_cuda_sync_events` was asked for. Since CUDA 13 they name the stream that waits only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION, NO_NUMBER, EventKind, EventTable, EventWaits, Role
from gpudiag.trace.readers.kineto.header import loosely

_STREAM_WAITS, _HOST_WAITS, _STREAM_SYNC = "Stream Wait Event", "Event Sync", "Stream Sync"
_RECORDS = re.compile(r"(?:cuda|hip|cu)EventRecord")


class _Arguments(msgspec.Struct, gc=False):
    wait_on_cuda_event_record_corr_id: msgspec.Raw = msgspec.Raw(b"")
    wait_on_stream: msgspec.Raw = msgspec.Raw(b"")
    wait_on_cuda_event_id: msgspec.Raw = msgspec.Raw(b"")


class Awaited(NamedTuple):
    """What one event's arguments tell: correlation of the recording call, the stream, the event; or `NO_NUMBER`."""

    record: int
    stream: int
    event: int


def awaited(raw: msgspec.Raw) -> Awaited:
    """Decode the arguments of a synchronization event."""
    told = msgspec.structs.astuple(loosely(raw, _Arguments, _Arguments()))
    numbers = (loosely(one, int, NO_NUMBER) for one in told)
    return Awaited(*(number if 0 <= number < 2**63 else NO_NUMBER for number in numbers))


def event_waits(table: EventTable, told: Mapping[int, Awaited]) -> EventWaits:
    """The waits whose own call was recorded.

    Args:
        table: the events.
        told: by row of the synchronization events, what their arguments tell.

    A record that comes after the wait is another of the same event, as profilers keep the last of each: then neither
    it nor its stream is told. That a host call waits counts only where it does so: `cudaEventQuery` has an event too.
    """
    rows = np.fromiter(told, np.int64, len(told))
    record, stream, event = np.array(list(told.values()), np.int64).reshape(-1, 3).T
    calls = table.rows_of(EventKind.RUNTIME)
    recording = calls[_named(table, _RECORDS)[table.name[calls]]]
    call = _rows_with(table, calls, table.correlation[rows])
    recorded_by = _rows_with(table, recording, record)
    by_stream = _named(table, re.compile(_STREAM_WAITS))[table.name[rows]]
    of_stream = _named(table, re.compile(_STREAM_SYNC))[table.name[rows]]
    by_host = _named(table, re.compile(_HOST_WAITS))[table.name[rows]] | of_stream
    recorded_by[of_stream], stream[of_stream] = call[of_stream], table.thread[rows[of_stream]]
    too_late = ~of_stream & (recorded_by != NO_NUMBER) & (table.start_ns[recorded_by] >= table.start_ns[call])
    recorded_by[too_late] = stream[too_late] = NO_NUMBER
    kept = (call != NO_NUMBER) & (by_stream | by_host & (table.role[call] == Role.SYNCHRONIZATION))
    kept = np.flatnonzero(kept)[np.argsort(call[kept], kind="stable")]
    return EventWaits(
        call=call[kept],
        device=table.device[rows[kept]].astype(np.int64),
        stream=np.where(by_stream, table.thread[rows], NO_NUMBER)[kept],
        record=recorded_by[kept],
        recorded_stream=stream[kept],
        event=event[kept],
    )


def _named(table: EventTable, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """bool[names]: whether a name begins so."""
    return np.array([pattern.match(name) is not None for name in table.names], np.bool_)


def _rows_with(table: EventTable, rows: NDArray[np.intp], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first of these rows with each correlation, or `NO_NUMBER`."""
    if not len(rows):
        return np.full(len(wanted), NO_NUMBER, np.int64)
    ordered = rows[np.argsort(table.correlation[rows], kind="stable")]
    has = table.correlation[ordered]
    slot = np.minimum(np.searchsorted(has, wanted), len(ordered) - 1)
    return np.where((has[slot] == wanted) & (wanted != NO_CORRELATION), ordered[slot], NO_NUMBER)
