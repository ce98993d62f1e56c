"""Read the CUDA event or stream that each wait waits for.

nsys records synchronizations, and since 2024 (`--cuda-event-trace`) the calls that record CUDA events:

    CUPTI_ACTIVITY_KIND_CUDA_EVENT        cudaEventRecord of event 7 in stream 20, correlation 801
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION   cudaStreamWaitEvent: stream 7 waits for event 7, correlation 802
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_NUMBER, EventKind, EventTable, EventWaits, Role
from gpudiag.trace.readers.nsys.database import MISSING, Database, Window

_SYNCHRONIZATIONS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_THREAD_BITS = 24
_EVENT, _STREAM_WAIT, _STREAM = "EVENT_SYNCHRONIZE", "STREAM_WAIT_EVENT", "STREAM_SYNCHRONIZE"
#: Types of synchronization by CUPTI's codes, if the export has no table of the codes.
_TYPES = {1: _EVENT, 2: _STREAM_WAIT, 3: _STREAM, 4: "CONTEXT_SYNCHRONIZE"}

Column = NDArray[np.int64]


class Synchronizations(NamedTuple):
    """Synchronizations and records of CUDA events of all processes, as columns.

    `syncs` is int64[k, 6]: process, correlation, device, stream, event, code of the type in `types`.
    `records` is int64[m, 4]: process, correlation, stream, event.
    """

    syncs: Column
    records: Column
    types: dict[int, str]


def read_synchronizations(database: Database, window: Window | None, most: int) -> Synchronizations:
    """Return the synchronizations in the window, and all records; none of either table with more than `most` rows."""
    types = {}
    for code, name in database.enum("ENUM_CUPTI_SYNC_TYPE").items():
        types[code] = next((word for word in (_EVENT, _STREAM_WAIT, _STREAM) if name.endswith(word)), "")
    columns = {"globalPid": MISSING, "correlationId": MISSING, "deviceId": 0, "streamId": MISSING, "eventId": MISSING}
    syncs = _rows(database, _SYNCHRONIZATIONS, {**columns, "syncType": 0}, window, most)
    del columns["deviceId"]
    records = _rows(database, _RECORDS, columns, None, most)  # a wait may be for an event recorded before the window
    return Synchronizations(syncs, records, types or _TYPES)


def _rows(database: Database, table: str, columns: dict[str, int], window: Window | None, most: int) -> Column:
    """Return int64[k, columns]: the rows in the window; none if there are more than `most`.

    Column 0 has the process, without the thread bits of the table's `globalPid`.
    """
    parts = [np.empty((0, len(columns)), np.int64)]
    total = 0
    for rows, _ in database.integers(table, columns, window=window):
        rows[:, 0] >>= _THREAD_BITS
        parts.append(rows)
        total += len(rows)
        if total > most:
            return parts[0]
    return np.concatenate(parts)


def event_waits(events: EventTable, process: int, all_syncs: Synchronizations) -> EventWaits:
    """Return the waits of a process, except waits whose calls were not recorded.

    A wait for a CUDA event refers to the last earlier call that recorded the event.
    """
    syncs = all_syncs.syncs[all_syncs.syncs[:, 0] == process]
    records = all_syncs.records[all_syncs.records[:, 0] == process]
    if not len(syncs):
        return EventWaits()
    calls = events.rows_of(EventKind.RUNTIME)
    _, correlation, device, stream, event, code = syncs.T
    call = events.rows_with(correlation, calls)
    by_stream, of_event, of_stream = (
        np.isin(code, [number for number, name in all_syncs.types.items() if name == wanted])
        for wanted in (_STREAM_WAIT, _EVENT, _STREAM)
    )
    # The host waits only if the call synchronizes, unlike `cudaEventQuery`.
    by_host = (of_event | of_stream) & (call != NO_NUMBER)
    by_host[by_host] = events.role[call[by_host]] == Role.SYNCHRONIZATION
    kept = np.flatnonzero((call != NO_NUMBER) & (by_stream | by_host))
    kept = kept[np.argsort(call[kept], kind="stable")]
    call, by_stream, of_stream = call[kept], by_stream[kept], of_stream[kept]
    recording, recorded_stream = _last_records(events, calls, records, event[kept], call)
    # A stream's synchronization is represented as a wait for an event that the same call records in the stream.
    return EventWaits(
        call=call,
        device=np.where((device >= 0) & (device < 2**15), device, 0)[kept],
        stream=np.where(by_stream, stream[kept], NO_NUMBER),
        record=np.where(of_stream, call, recording),
        recorded_stream=np.where(of_stream, stream[kept], recorded_stream),
        event=np.where(of_stream | (event[kept] < 0), NO_NUMBER, event[kept]),
    )


def _last_records(
    events: EventTable, calls: NDArray[np.intp], records: Column, waited: Column, call: Column
) -> tuple[Column, Column]:
    """Return for each wait (row of the last earlier call that recorded its event, stream); `NO_NUMBER` if unknown.

    `waited` and `call` have the event and the call of each wait; `calls` has the rows of all calls of the process, and
    `records` its rows of `Synchronizations.records`.
    """
    recording = events.rows_with(records[:, 1], calls)
    known = recording != NO_NUMBER
    recording, records = recording[known], records[known]
    event = np.concatenate([records[:, 3], waited])
    when = events.start_ns[np.concatenate([recording, call])]
    is_wait = np.arange(len(event)) >= len(recording)
    order = np.lexsort((is_wait, when, event))
    # `latest` has the position in `order` of the last record up to each entry; -1 if there is none. Only a record of
    # the entry's event counts.
    latest = np.maximum.accumulate(np.where(is_wait[order], -1, np.arange(len(order))))
    source = order[np.maximum(latest, 0)]
    matches = (latest >= 0) & (event[source] == event[order]) & (when[source] < when[order]) & is_wait[order]
    last_record = np.full(len(event), NO_NUMBER, np.int64)
    last_record[order[matches]] = source[matches]
    last_record = last_record[len(recording) :]
    has = last_record != NO_NUMBER
    rows, streams = np.full(len(waited), NO_NUMBER, np.int64), np.full(len(waited), NO_NUMBER, np.int64)
    rows[has], streams[has] = recording[last_record[has]], records[last_record[has], 2]
    return rows, streams
