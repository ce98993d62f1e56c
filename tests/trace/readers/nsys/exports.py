"""Write recordings in the SQLite format of Nsight Systems, with the tables and columns that NVIDIA documents.

No public export of `nsys` has a license that allows a copy here. Events, times and names come from real recordings of
other profilers; only the layout is generated. Two versions of the schema are written:

* `SCHEMA_2022`: rows of NVTX ranges contain their texts; no mangled names and no records of CUDA events.
* `SCHEMA_2024`: schema 3.16 of Nsight Systems 2024.6; texts are registered strings (`textId`).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.model.event import NO_CORRELATION, NO_NUMBER, NO_SIZE, Direction, EventKind, Trace

#: Columns of each table; a column is an INTEGER unless its name ends in a type.
_COMMON = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId, priority, globalTid",
    "PROCESSES": "globalPid, pid, name TEXT",
    "ANALYSIS_DETAILS": "globalVid, duration, startTime, stopTime",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": "vmId, id, name TEXT, busLocation TEXT, totalMemory, smCount, uuid TEXT, computeMajor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid, uuid TEXT, numMultiprocessors",
    "TARGET_INFO_SYSTEM_ENV": "globalVid, devStateName TEXT, name TEXT, nameEnum, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "DIAGNOSTIC_EVENT": "timestamp, timestampType, source, severity, text TEXT, globalPid",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUPTI_SYNC_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_NSYS_EVENT_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId",
    "PROFILER_OVERHEAD": "start, end, globalTid, correlationId, nameId, returnValue, overheadType",
}
_DEVICE = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
_DEVICE_2024 = "start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid"
_KERNEL = (
    "launchType, cacheConfig, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, staticSharedMemory, "
    "dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId, sharedMemoryExecuted, graphNodeId, "
    "sharedMemoryLimitConfig"
)
_COPY = (
    "bytes, copyKind, deprecatedSrcId, srcKind, dstKind, srcDeviceId, srcContextId, dstDeviceId, dstContextId, "
    "migrationCause, graphNodeId, virtualAddress"
)
_NVTX = (
    "start, end, eventType, rangeId, category, color, text TEXT, globalTid, endGlobalTid, textId, domainId, "
    "uint64Value, int64Value, doubleValue REAL, uint32Value, int32Value, floatValue REAL, jsonTextId, jsonText TEXT"
)


class Schema(msgspec.Struct, frozen=True):
    """A version of the schema: the product's version, whether NVTX texts are registered strings, and its tables."""

    product: str
    text_ids: bool
    tables: Mapping[str, str]


SCHEMA_2022 = Schema(
    "2022.4.2.18-32044700v0",
    False,
    {
        **_COMMON,
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE}, demangledName, shortName, {_KERNEL}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE}, {_COPY}",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE}, value, bytes, graphNodeId, memKind",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_DEVICE}, graphId, graphExecId",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_DEVICE}, syncType, eventId",
        "NVTX_EVENTS": _NVTX,
    },
)
SCHEMA_2024 = Schema(
    "2024.6.2.225-246235244400v0",
    True,
    {
        **_COMMON,
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{_DEVICE_2024}, demangledName, shortName, mangledName, {_KERNEL}",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_DEVICE_2024}, {_COPY}",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{_DEVICE_2024}, value, bytes, graphNodeId, memKind",
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_DEVICE_2024}, graphId, graphExecId",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_DEVICE_2024}, syncType, eventId",
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId, contextId, streamId, correlationId, globalPid, eventId",
        "NVTX_EVENTS": f"{_NVTX}, binaryData TEXT",
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId, schemaId, idx, flags, type, name TEXT, arrayOrUnionDetail, offset",
    },
)
_ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": {0: "CUDA_MEMCPY_KIND_UNKNOWN", 1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH",
                              8: "CUDA_MEMCPY_KIND_DTOD", 9: "CUDA_MEMCPY_KIND_HTOH", 10: "CUDA_MEMCPY_KIND_PTOP"},
    "ENUM_CUDA_MEM_KIND": {0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", 1: "CUDA_MEMOPR_MEMORY_KIND_PINNED",
                           2: "CUDA_MEMOPR_MEMORY_KIND_DEVICE", 3: "CUDA_MEMOPR_MEMORY_KIND_ARRAY",
                           4: "CUDA_MEMOPR_MEMORY_KIND_MANAGED", 7: "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN"},
    "ENUM_CUPTI_SYNC_TYPE": {0: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN",
                             1: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
                             2: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT",
                             3: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
                             4: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE"},
    "ENUM_NSYS_EVENT_TYPE": {34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange", 75: "NvtxDomainCreate"},
}  # fmt: skip
_COPY_KINDS = {
    Direction.HOST_TO_DEVICE: 1,
    Direction.DEVICE_TO_HOST: 2,
    Direction.DEVICE_TO_DEVICE: 8,
    Direction.HOST_TO_HOST: 9,
    Direction.PEER: 10,
}
_MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2, "Array": 3, "Managed": 4}
_ENDS = re.compile(r"\((\w+) -> (\w+)\)")
_RUNTIME_CALL = re.compile(r"cuda[A-Z]\w*$")
_PUSH_POP, _DOMAIN_CREATE = 59, 75
#: Process id of the first trace.
FIRST_PROCESS = 4000
SESSION_START_NS = 1_700_000_000_000_000_000


class ExportWriter:
    """Write an export table by table. Use it as a context manager.

    Args:
        path: the file to write.
        schema: version of the schema.
    """

    def __init__(self, path: Path, schema: Schema = SCHEMA_2024) -> None:
        self._schema = schema
        self._database = sqlite3.connect(path)
        self._strings: dict[str, int] = {}
        self._inserts: dict[str, tuple[str, list[str]]] = {}  # table → (SQL statement, names of columns)
        for table, columns in schema.tables.items():
            known = [column.split(" ")[0] for column in columns.split(", ")]
            self._inserts[table] = f"INSERT INTO {table} VALUES ({', '.join('?' * len(known))})", known  # noqa: S608
            listed = (column if " " in column else f'"{column}" INTEGER' for column in columns.split(", "))
            self._database.execute(f"CREATE TABLE {table} ({', '.join(listed)})")
        for table, names in _ENUMS.items():
            self.rows(table, ({"id": number, "name": name, "label": name} for number, name in names.items()))
        self.rows("META_DATA_EXPORT", [{"name": "EXPORT_PRODUCT_VERSION", "value": schema.product}])
        self.rows(
            "TARGET_INFO_SESSION_START_TIME",
            [{"utcEpochNs": SESSION_START_NS, "utcTime": "2023-11-14 22:13:20", "localTime": "2023-11-14 22:13:20"}],
        )
        self.rows("TARGET_INFO_SYSTEM_ENV", [{"globalVid": 0, "name": "Hostname", "nameEnum": 1, "value": "node7"}])

    def __enter__(self) -> ExportWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._database):
            self._database.commit()

    def string(self, text: str) -> int:
        """Return the id of a string; register it at first use."""
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.rows("StringIds", [{"id": self._strings[text], "value": text}])
        return self._strings[text]

    def rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows, but skip tables and columns that this version of the schema lacks."""
        if table not in self._inserts:
            return
        insert, columns = self._inserts[table]
        self._database.executemany(insert, ([row.get(column) for column in columns] for row in rows))

    def nvtx(
        self,
        start: int,
        end: int | None,
        text: str,
        thread: int,
        *,
        domain: int = 0,
        kind: int = _PUSH_POP,
        payload: bytes | None = None,
    ) -> None:
        """Write a range of a thread, or an event of another `kind` (`ENUM_NSYS_EVENT_TYPE`).

        Times are in ns since the session's start; `end` is None for an event without a duration. `thread` is a global
        thread id, and `payload` is binary data with its header, which only `SCHEMA_2024` stores.
        """
        content: dict[str, Any] = {"textId": self.string(text)} if self._schema.text_ids else {"text": text}
        content["binaryData"] = payload
        self.rows(
            "NVTX_EVENTS",
            [{"start": start, "end": end, "eventType": kind, "globalTid": thread, "domainId": domain, **content}],
        )

    def domain(self, name: str, thread: int, domain: int) -> None:
        """Write the creation of a domain."""
        self.nvtx(0, None, name, thread, domain=domain, kind=_DOMAIN_CREATE)

    def diagnostic(self, severity: int, text: str) -> None:
        """Write a message of nsys; warnings have the severity 2."""
        self.rows("DIAGNOSTIC_EVENT", [{"timestamp": 0, "severity": severity, "text": text}])


def write_export(
    path: Path,
    traces: Sequence[Trace],
    schema: Schema = SCHEMA_2024,
    *,
    operators: bool = True,
    graphs_as_a_whole: bool = False,
) -> Path:
    """Write an export in which each trace is a process, and all devices are of one model; return its path.

    Args:
        path: the file to write.
        traces: recordings of one job. All times are written relative to the earliest `origin_ns`.
        schema: version of the schema.
        operators: whether operators are written, as ranges of PyTorch's `emit_nvtx`.
        graphs_as_a_whole: whether each launch of a CUDA graph is written as one row instead of its kernels.
    """
    begin = min(trace.origin_ns for trace in traces)
    with ExportWriter(path, schema) as writer:
        models = {name for trace in traces for name in trace.device_names.values()} or {"NVIDIA Test"}
        devices = {int(device) for trace in traces for device in trace.events.device.tolist() if device >= 0}
        writer.rows("TARGET_INFO_GPU", ({"vmId": 0, "id": device, "name": min(models)} for device in sorted(devices)))
        for index, trace in enumerate(traces):
            _Process(writer, FIRST_PROCESS + index, trace, trace.origin_ns - begin).write(
                operators=operators, graphs_as_a_whole=graphs_as_a_whole
            )
    return path


class _Process:
    """Write the events of one trace as events of a process; `shift_ns` is added to all times."""

    def __init__(self, writer: ExportWriter, pid: int, trace: Trace, shift_ns: int) -> None:
        self._writer = writer
        self._trace = trace
        self._columns = {name: column.tolist() for name, column in trace.events.columns().items()}
        # nsys's global ids have the process id from bit 24 on, and the thread id in the lower bits.
        self._pid = pid << 24
        self._shift_ns = shift_ns
        threads = dict.fromkeys(trace.events.thread[trace.events.device < 0].tolist())
        self._thread = {thread: self._pid | (pid + number) for number, thread in enumerate(threads)}

    def write(self, *, operators: bool, graphs_as_a_whole: bool) -> None:
        """Write the process, its devices, and all events of the trace."""
        events = self._trace.events
        pid = self._pid >> 24
        devices = sorted({int(device) for device in events.device.tolist() if device >= 0})
        self._writer.rows("PROCESSES", [{"globalPid": self._pid, "pid": pid, "name": "python"}])
        self._writer.rows(
            "TARGET_INFO_CUDA_DEVICE", ({"gpuId": device, "cudaId": device, "pid": pid} for device in devices)
        )
        left_out = self._write_graphs() if graphs_as_a_whole else set()
        for row in range(len(events)):
            if row not in left_out:
                self._write_event(row, operators=operators)
        self._write_waits()

    def _write_event(self, row: int, *, operators: bool) -> None:
        """Write the event at `row` into the table of its kind; other kinds are left out."""
        kind, name = EventKind(self._columns["kind"][row]), self._trace.events.names[self._columns["name"][row]]
        if kind == EventKind.KERNEL:
            named = self._writer.string(name)
            short = self._writer.string(name.partition("<")[0].removeprefix("void "))
            self._device(row, "CUPTI_ACTIVITY_KIND_KERNEL", demangledName=named, shortName=short, gridX=1, blockX=1)
        elif kind == EventKind.COPY:
            self._copy(row, name)
        elif kind == EventKind.MEMSET:
            self._device(row, "CUPTI_ACTIVITY_KIND_MEMSET", bytes=self._size(row), value=0, memKind=2)
        elif kind == EventKind.RUNTIME:
            # nsys appends the version of CUPTI's interface to the names of runtime calls.
            call = f"{name}_v7000" if _RUNTIME_CALL.match(name) else name
            self._host(row, "CUPTI_ACTIVITY_KIND_RUNTIME", nameId=self._writer.string(call), returnValue=0)
        elif kind == EventKind.OVERHEAD:
            self._host(row, "PROFILER_OVERHEAD", nameId=self._writer.string(name), returnValue=0)
        elif kind in {EventKind.ANNOTATION, EventKind.MODULE} or (kind == EventKind.OPERATOR and operators):
            start, end = self._times(row)
            text = f"{name}, seq = {row}, op_id = {row + 1}" if kind == EventKind.OPERATOR else name
            self._writer.nvtx(start, end, text, self._thread[self._columns["thread"][row]])

    def _write_graphs(self) -> set[int]:
        """Write one row for each launch of a CUDA graph instead of its events; return the positions of these events."""
        events = self._trace.events
        launches = {
            int(events.correlation[row])
            for row in events.rows_of(EventKind.RUNTIME).tolist()
            if "GraphLaunch" in events.name_of(row)
        }
        members: dict[int, list[int]] = {}
        for row in events.rows_of(EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET).tolist():
            if int(events.correlation[row]) in launches:
                members.setdefault(int(events.correlation[row]), []).append(row)
        for rows in members.values():
            end = max(self._times(row)[1] for row in rows)
            self._device(rows[0], "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", end=end, graphId=1, graphExecId=3)
        return {row for rows in members.values() for row in rows}

    def _write_waits(self) -> None:
        """Write synchronizations, and the records of the CUDA events that they wait for."""
        events, waits = self._trace.events, self._trace.event_waits
        recorded: set[int] = set()
        for index in range(len(waits)):
            call, record = int(waits.call[index]), int(waits.record[index])
            start, end = self._times(call)
            by_stream = int(waits.stream[index]) != NO_NUMBER
            # The trace represents the synchronization of a whole stream as a wait for an event that the call records.
            of_stream = not by_stream and record == call
            shared = {"deviceId": int(waits.device[index]), "contextId": 1, "globalPid": self._pid}
            stream = int(waits.stream[index] if by_stream else waits.recorded_stream[index])
            event = int(waits.event[index])
            sync = {"start": start, "end": end, "streamId": stream, "eventId": event, **shared}
            sync |= {
                "correlationId": int(events.correlation[call]),
                "syncType": 3 if of_stream else 2 if by_stream else 1,
            }
            self._writer.rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", [sync])
            if record not in {NO_NUMBER, call} and record not in recorded:
                recorded.add(record)
                row = {"streamId": int(waits.recorded_stream[index]), "eventId": event, **shared}
                row |= {"correlationId": int(events.correlation[record])}
                self._writer.rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT", [row])

    def _copy(self, row: int, name: str) -> None:
        """Write a copy, with the kinds of memory that its name states; 7 if it states none."""
        ends = _ENDS.search(name)
        kinds = [_MEMORY_KINDS.get(word, 7) for word in ends.groups()] if ends else [7, 7]
        self._device(
            row,
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            bytes=self._size(row),
            copyKind=_COPY_KINDS.get(Direction(self._columns["direction"][row]), 0),
            srcKind=kinds[0],
            dstKind=kinds[1],
        )

    def _size(self, row: int) -> int:
        size: int = self._columns["size_bytes"][row]
        return 0 if size == NO_SIZE else size

    def _device(self, row: int, table: str, **more: int) -> None:
        start, end = self._times(row)
        values = {"start": start, "end": end, "deviceId": self._columns["device"][row], "contextId": 1}
        values |= {"streamId": self._columns["thread"][row], "globalPid": self._pid}
        self._writer.rows(table, [{**values, "correlationId": self._correlation(row), **more}])

    def _host(self, row: int, table: str, **more: int) -> None:
        start, end = self._times(row)
        thread = self._thread[self._columns["thread"][row]]
        values = {"start": start, "end": end, "eventClass": 0, "globalTid": thread}
        self._writer.rows(table, [{**values, "correlationId": self._correlation(row), **more}])

    def _correlation(self, row: int) -> int:
        correlation: int = self._columns["correlation"][row]
        return 0 if correlation == NO_CORRELATION else correlation

    def _times(self, row: int) -> tuple[int, int]:
        return self._columns["start_ns"][row] + self._shift_ns, self._columns["end_ns"][row] + self._shift_ns
