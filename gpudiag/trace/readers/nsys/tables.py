"""Convert the tables of an export to events of all processes, with one name index.

NVIDIA documents the tables and columns. Older and newer exports lack some tables and columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, EventKind
from gpudiag.trace.readers.nsys.database import MISSING, Database, Window
from gpudiag.trace.readers.nsys.nvtx_names import interpret

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
_OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
_LIBRARY_CALLS = ("CUDNN_EVENTS", "CUBLAS_EVENTS")
#: Tables with a start and an end, whose rows become events.
EVENT_TABLES = (KERNELS, COPIES, MEMSETS, GRAPHS, CALLS, RANGES, *_OVERHEADS, *_LIBRARY_CALLS)

#: Bits below the process in a global thread id: `hardware (8) | virtual machine (8) | process (24) | thread (24)`.
_THREAD_BITS = 24
_THREAD = (1 << _THREAD_BITS) - 1
#: Process of device work in old exports, which do not state it.
UNKNOWN_PROCESS = -1

#: Codes of event types in `NVTX_EVENTS`: ranges, and the creation of a domain.
_PUSH_POP, _START_END, _DOMAIN_CREATE = 59, 60, 75
#: Direction of a copy by CUPTI's code; the last three codes belong to unified memory.
_WORDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
_DIRECTIONS = dict(enumerate(_WORDS))
#: CUPTI's codes of copies between two devices (PtoP) and within one device (DtoD).
_BETWEEN_DEVICES = 10
_WITHIN_DEVICE = 8
#: Kind of memory by its code, if the export has no table of the codes.
_MEMORY = {0: "PAGEABLE", 1: "PINNED", 2: "DEVICE", 3: "ARRAY", 4: "MANAGED", 5: "DEVICE", 6: "MANAGED"}
_MEMORY_WORDS = ("pageable", "pinned", "managed", "array", "device")
#: Suffix of names of CUDA's runtime calls, which states the version of CUDA that introduced the call.
_VERSION = re.compile(r"_v\d{4,6}$")
_DOMAIN_LENGTH = 100


class EventColumns(NamedTuple):
    """Unsorted events of all processes, as columns of equal length; see `gpudiag.model.event.EventTable`.

    `process` has the global process id without thread bits. Devices and threads are numbered within the process.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int16]
    correlation: NDArray[np.int64]
    size: NDArray[np.int64]

    def chosen(self, rows: NDArray[np.bool_]) -> EventColumns:
        """Return the events for which `rows` is true."""
        columns: list[Any] = [column[rows] for column in self]
        return EventColumns._make(columns)


class Names(dict[str, int]):
    """Name → index in order of first use."""

    def __missing__(self, name: str) -> int:
        self[name] = index = len(self)
        return index


_DEVICE_COLUMNS = {"start": MISSING, "end": MISSING, "globalPid": MISSING, "deviceId": 0, "streamId": 0}
_HOST_COLUMNS = {"start": MISSING, "end": MISSING, "globalTid": MISSING}


class TableReader:
    """Read the tables of an export.

    Args:
        database: the export.
        window: [begin, end) of the starts of the events to read; None for all events.
        most_events: maximum number of events in the window.
    """

    def __init__(self, database: Database, window: Window | None, most_events: int) -> None:
        self._database = database
        self._window = window
        self._left = most_events
        self._parts: list[EventColumns] = []
        self.names = Names()
        #: Number of graph launches that are recorded as one device op each.
        self.graph_launches = 0

    def read(self) -> EventColumns:
        """Return all events of the window.

        Raises:
            UnreadableInputError: the file is damaged.
            TooManyEventsError: there are more than `most_events`.
        """
        self._kernels()
        self._copies()
        self._memsets()
        self._graphs()
        self._calls(CALLS, EventKind.RUNTIME)
        for table in _OVERHEADS:
            self._calls(table, EventKind.OVERHEAD)
        for table in _LIBRARY_CALLS:
            self._calls(table, EventKind.OPERATOR)
        self._ranges()
        if not self._parts:
            none = np.empty(0, np.int64)
            return _events(EventKind.KERNEL, none, start=none, end=none, process=none, thread=none)
        events = EventColumns(*(np.concatenate(columns) for columns in zip(*self._parts, strict=True)))
        self._parts.clear()
        return events

    def _kernels(self) -> None:
        known = self._database.tables.get(KERNELS, frozenset())
        named = next((column for column in ("demangledName", "shortName", "mangledName") if column in known), "name")
        self._device_work(KERNELS, EventKind.KERNEL, {named: MISSING}, lambda rows: self._by_id(rows[:, 0]))

    def _copies(self) -> None:
        """Read copies, and name each after its direction and kinds of memory."""
        memory = self._database.enum("ENUM_CUDA_MEM_KIND") or _MEMORY
        columns = {
            "copyKind": 0,
            "srcKind": MISSING,
            "dstKind": MISSING,
            "srcDeviceId": MISSING,
            "dstDeviceId": MISSING,
        }

        def name(rows: NDArray[np.int64]) -> NDArray[np.int32]:
            """Return the index of each copy's name; the columns of `rows` are those of `columns`."""
            direction, memory_kinds, devices = rows[:, 0].copy(), rows[:, 1:3], rows[:, 3:5]
            # Copies between devices may be recorded as copies within a device.
            between = (devices[:, 0] != devices[:, 1]) & (devices >= 0).all(axis=1)
            direction[between & (direction == _WITHIN_DEVICE)] = _BETWEEN_DEVICES
            keys = np.column_stack([direction, memory_kinds])
            return self._by_row(keys, lambda row: copy_name(row[0], row[1], row[2], memory))

        self._device_work(COPIES, EventKind.COPY, columns, name, size="bytes")

    def _memsets(self) -> None:
        memset = self.names["Memset (Device)"]
        self._device_work(
            MEMSETS, EventKind.MEMSET, {}, lambda rows: np.full(len(rows), memset, np.int32), size="bytes"
        )

    def _graphs(self) -> None:
        """Read launches of graphs that were recorded as a whole, without their kernels."""
        self.graph_launches = self._device_work(
            GRAPHS,
            EventKind.KERNEL,
            {"graphExecId": MISSING},
            lambda rows: self._by_row(rows, lambda row: f"CUDA graph {row[0]}"),
        )

    def _device_work(
        self,
        table: str,
        kind: EventKind,
        more: Mapping[str, int],
        name: Callable[[NDArray[np.int64]], NDArray[np.int32]],
        size: str = "",
    ) -> int:
        """Read a table of device work; return its number of rows.

        `kind` is the kind of all events. `more` has further columns (name → value where missing), and `name` maps these
        columns to indices of names. `size` is the column with the number of bytes; "" for kernels, which have none.
        """
        columns = {**_DEVICE_COLUMNS, "correlationId": MISSING, size or "bytes": NO_SIZE, **more}
        first = len(columns) - len(more)  # index of the first column in `more`
        total = 0
        for rows, _ in self._rows(table, columns):
            total += len(rows)
            start, end, process, device, stream, correlation, bytes_moved = rows[:, :first].T
            self._add(
                _events(
                    kind,
                    name(rows[:, first:]),
                    start=start,
                    end=end,
                    process=process >> _THREAD_BITS,
                    thread=stream,
                    device=np.where((device >= 0) & (device < 2**15), device, 0),
                    correlation=correlation,
                    size=bytes_moved,
                )
            )
        return total

    def _calls(self, table: str, kind: EventKind) -> None:
        """Read a table of host calls as events of this kind."""
        columns = {**_HOST_COLUMNS, "correlationId": MISSING, "nameId": MISSING}
        for rows, _ in self._rows(table, columns):
            start, end, thread, correlation, name = rows.T
            self._add(
                _events(
                    kind,
                    self._by_id(name),
                    start=start,
                    end=end,
                    process=thread >> _THREAD_BITS,
                    thread=thread & _THREAD,
                    # Only runtime calls launch device work.
                    correlation=correlation if kind == EventKind.RUNTIME else None,
                )
            )

    def _ranges(self) -> None:
        """Read NVTX ranges. Texts of ranges are in the table itself, or are registered strings."""
        types = self._database.enum("ENUM_NSYS_EVENT_TYPE")
        wanted = [code for code, name in types.items() if name in {"NVTXPUSHPOPRANGE", "NVTXSTARTENDRANGE"}]
        known = self._database.tables.get(RANGES, frozenset())
        codes = ", ".join(map(str, wanted or (_PUSH_POP, _START_END)))
        where = f'"eventType" IN ({codes})' if "eventType" in known else ""
        domains = self._domains()
        columns = {**_HOST_COLUMNS, "domainId": 0, "textId": MISSING}
        rows_and_texts = self._rows(RANGES, columns, where=where, text="text")
        for rows, explicit in rows_and_texts:
            start, end, thread, domain, text_id = rows.T
            strings = self._database.strings(distinct(text_id[text_id >= 0]).tolist())
            process = (thread >> _THREAD_BITS).tolist()
            kind = np.empty(len(rows), np.uint8)
            name = np.empty(len(rows), np.int32)
            texts = explicit or [""] * len(rows)
            for row, key in enumerate(zip(process, domain.tolist(), text_id.tolist(), texts, strict=True)):
                owner, domain_id, string, text = key
                nvtx_range = interpret(text or strings.get(string, ""), domains.get((owner, domain_id), ""))
                kind[row], name[row] = nvtx_range.kind, self.names[nvtx_range.name]
            self._add(
                _events(kind, name, start=start, end=end, process=thread >> _THREAD_BITS, thread=thread & _THREAD),
                unended=True,
            )

    def _domains(self) -> dict[tuple[int, int], str]:
        """Return (process, domain id) → name of the domain, also of domains created before the window."""
        if "eventType" not in self._database.tables.get(RANGES, frozenset()):
            return {}
        domains: dict[tuple[int, int], str] = {}
        columns = {"globalTid": MISSING, "domainId": 0, "textId": MISSING}
        where = f'"eventType" = {_DOMAIN_CREATE}'
        for rows, texts in self._database.integers(RANGES, columns, where=where, text="text"):
            strings = self._database.strings(distinct(rows[:, 2][rows[:, 2] >= 0]).tolist())
            for (thread, domain, string), text in zip(rows.tolist(), texts or [""] * len(rows), strict=True):
                name = text or strings.get(string, "")
                domains[thread >> _THREAD_BITS, domain] = name[:_DOMAIN_LENGTH]
        return domains

    def _rows(
        self, table: str, columns: Mapping[str, int], where: str = "", text: str = ""
    ) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
        """Yield the rows in the window of a table with starts and ends, as `Database.integers` does."""
        if {"start", "end"} <= self._database.tables.get(table, frozenset()):
            yield from self._database.integers(table, columns, window=self._window, where=where, text=text)

    def _by_id(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return int32[n]: the index of the name that has each string id."""
        values, position = np.unique(ids, return_inverse=True)
        strings = self._database.strings(values.tolist())
        index = [self.names[_VERSION.sub("", strings.get(number, "")) or "?"] for number in values.tolist()]
        return np.array(index, np.int32)[position.reshape(-1)]

    def _by_row(self, rows: NDArray[np.int64], name: Callable[[Sequence[int]], str]) -> NDArray[np.int32]:
        """Return int32[n]: the index of each row's name. `name` is called once per distinct row."""
        values, position = np.unique(rows, axis=0, return_inverse=True)  # NumPy 2.0 returns `position` as a column
        index = [self.names[name(row)] for row in values.tolist()]
        return np.array(index, np.int32)[position.reshape(-1)]

    def _add(self, events: EventColumns, *, unended: bool = False) -> None:
        """Add events, and count them. If `unended`, ranges that were open when the recording ended are left out."""
        if unended:
            ended = events.end >= events.start
            events = events.chosen(ended)
        self._left -= len(events.kind)
        if self._left < 0:
            raise TooManyEventsError
        self._parts.append(events)


class TooManyEventsError(Exception):
    """There are more events than the reader may keep."""


def copy_name(direction: int, source: int, target: int, memory: Mapping[int, str]) -> str:
    """Return the name of a copy as other profilers write it, from codes of its direction and of two kinds of memory.

    `memory` maps codes to kinds of memory. An unknown kind (code or word) leaves out both kinds.

    >>> copy_name(1, 0, 2, _MEMORY), copy_name(8, -1, -1, {})
    ('Memcpy HtoD (Pageable -> Device)', 'Memcpy DtoD')
    """
    words = [_memory_word(memory.get(kind, "")) for kind in (source, target)]
    ends = f" ({words[0]} -> {words[1]})" if all(words) else ""
    return f"Memcpy {_DIRECTIONS.get(direction) or 'Unknown'}{ends}"


def _memory_word(name: str) -> str:
    lowered = name.lower()
    return next((word.capitalize() for word in _MEMORY_WORDS if word in lowered), "")


def _events(
    kind: EventKind | NDArray[np.uint8],
    name: NDArray[np.int32] | NDArray[np.int64],
    *,
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    process: NDArray[np.int64],
    thread: NDArray[np.int64],
    device: NDArray[np.int64] | None = None,
    correlation: NDArray[np.int64] | None = None,
    size: NDArray[np.int64] | None = None,
) -> EventColumns:
    """Return events; missing columns (None) and values get the codes of `EventTable`.

    Columns are copied, so that the memory of the fetched rows can be freed.
    """
    count = len(start)
    none = np.full(count, NO_CORRELATION, np.int64)
    return EventColumns(
        kind=np.full(count, kind, np.uint8) if isinstance(kind, EventKind) else kind,
        name=name.astype(np.int32),
        start=start.copy(),
        end=end.copy(),
        process=process.copy(),
        thread=thread.copy(),
        device=np.full(count, HOST, np.int16) if device is None else device.astype(np.int16),
        # CUPTI numbers correlations from 1; 0 means that there is none.
        correlation=none if correlation is None else np.where(correlation > 0, correlation, NO_CORRELATION),
        size=np.full(count, NO_SIZE, np.int64) if size is None else np.where(size >= 0, size, NO_SIZE),
    )


def processes_of(events: EventColumns, kinds: Iterable[EventKind]) -> dict[int, int]:
    """Return process → number of its events of these kinds."""
    chosen = np.isin(events.kind, [int(kind) for kind in kinds])
    processes, counts = np.unique(events.process[chosen], return_counts=True)
    return dict(zip(processes.tolist(), counts.tolist(), strict=True))
