"""Pack the events of a rank, so that the ranks of a large job fit into memory.

A packed event takes 3 to 5 bytes instead of 50, and unpacking a rank's events takes about 5 ms. Unpacked columns are
equal to the original columns to the byte. Events are stored thread by thread (of the host) and stream by stream (of a
device), because the times between successive events of one thread or stream are small numbers.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION, EventTable, Trace

#: Number of recently used tables that are kept unpacked: as many as ranks are simulated in large jobs.
_MOST_UNPACKED = 64
_LEVEL = 6
#: Maximum length of a column. Columns of equal values take no bytes, so the file's size does not bound their length.
_MOST_VALUES = 200_000_000
_DTYPES = {
    "kind": np.uint8,
    "name": np.int32,
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.int64,
    "device": np.int16,
    "correlation": np.int64,
    "size_bytes": np.int64,
    "role": np.uint8,
    "direction": np.uint8,
    "host_memory": np.uint8,
}
#: Columns of a packed table with one value per event, and all columns.
_OF_EVENTS = frozenset(
    ("gap", "duration", "name", "kind", "thread", "device", "correlated", "size_bytes", "role", "direction")
) | {"host_memory", "moved"}
_PACKED = _OF_EVENTS | {"correlation"}


class PackedColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of integers: its length, bytes per value (1, 2, 4 or 8), and where it begins in the packed bytes.

    A column of equal values has 0 bytes per value, and `begin` is the value.
    """

    length: Annotated[int, msgspec.Meta(ge=0, le=_MOST_VALUES)]
    width: int
    begin: int


class PackedTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An event table, packed.

    Attributes:
        columns: name → its column in `data`.
        names: distinct names of events.
        size: number of bytes that `data` takes when it is decompressed.
        data: the columns, one after the other, compressed.
    """

    columns: dict[str, PackedColumn]
    names: tuple[str, ...]
    size: int
    data: bytes

    def __len__(self) -> int:
        return self.columns["gap"].length


class PackedEvents:
    """Stand for an `EventTable` whose columns are unpacked when they are used.

    All attributes of the table are available. Up to `_MOST_UNPACKED` tables stay unpacked.
    """

    def __init__(self, table: PackedTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getattr__(self, name: str) -> Any:
        return getattr(unpacked(self.table), name)

    def __reduce__(self) -> tuple[type[PackedEvents], tuple[PackedTable]]:
        return PackedEvents, (self.table,)


def with_packed_events(trace: Trace) -> Trace:
    """Return the trace with packed events."""
    if isinstance(trace.events, PackedEvents):
        return trace
    return msgspec.structs.replace(trace, events=stand_in(pack(trace.events)))


def stand_in(table: PackedTable) -> EventTable:
    """Return packed events, typed as the `EventTable` for which they stand."""
    return cast("EventTable", PackedEvents(table))


def plain(events: EventTable) -> EventTable:
    """Return the event table itself, unpacked if it was packed."""
    return unpack(events.table) if isinstance(events, PackedEvents) else events


def pack(events: EventTable) -> PackedTable:
    """Pack an event table."""
    order = np.lexsort((events.thread, events.device))  # by device, then by thread or stream, then by start
    start, end = events.start_ns[order], events.end_ns[order]
    correlation = events.correlation[order]
    known = correlation != NO_CORRELATION
    # `gap` is the time since the end of the preceding stored event. It may be negative. The slice is for empty tables.
    parts = {
        "gap": start - np.concatenate([np.zeros(1, np.int64), end[:-1]])[: len(start)],
        "duration": end - start,
        "name": events.name[order],
        "kind": events.kind[order],
        "thread": np.diff(events.thread[order], prepend=0),
        "device": events.device[order],
        "correlated": known,
        "correlation": np.diff(correlation[known], prepend=0),
        "size_bytes": events.size_bytes[order],
        "role": events.role[order],
        "direction": events.direction[order],
        "host_memory": events.host_memory[order],
        "moved": order[_by_time(start)] - np.arange(len(order)),  # 0 unless events have equal starts
    }
    writer = ColumnWriter()
    columns = {name: writer.add(values) for name, values in parts.items()}
    size, data = writer.compressed()
    return PackedTable(columns=columns, names=events.names, size=size, data=data)


def unpack(table: PackedTable) -> EventTable:
    """Unpack an event table.

    Raises:
        ValueError: the packed bytes are damaged. Columns of equal values may have any length, so callers that do not
        trust `table` must check `len(table)` first.
    """
    if set(table.columns) != _PACKED or {table.columns[name].length for name in _OF_EVENTS} != {len(table)}:
        raise ValueError("columns are missing, or of different lengths")
    reader = ColumnReader(table.size, table.data)
    parts = {name: reader.column(column) for name, column in table.columns.items()}
    duration = parts["duration"].astype(np.int64)
    count = len(duration)
    start = np.cumsum(parts["gap"] + np.concatenate([np.zeros(1, np.int64), duration[:-1]])[:count])
    correlation = np.full(count, NO_CORRELATION, np.int64)
    correlation[parts["correlated"].astype(np.bool_)] = np.cumsum(parts["correlation"], dtype=np.int64)
    order = np.full(count, -1, np.intp)
    order[_within(parts["moved"] + np.arange(count), count)] = _by_time(start)
    _within(order, count)  # raises an error if a row occurs twice, because another row is then still -1
    whole = parts | {
        "start_ns": start,
        "end_ns": start + duration,
        "thread": np.cumsum(parts["thread"], dtype=np.int64),
        "correlation": correlation,
    }
    columns = {}
    for name, dtype in _DTYPES.items():
        # Equal values need no sorting. But equal differences (`thread`, `correlation`) do not mean equal values.
        constant = name in table.columns and table.columns[name].width == 0 and name not in {"thread", "correlation"}
        columns[name] = np.array(whole[name], dtype) if constant else whole[name][order].astype(dtype, copy=False)
    return EventTable(**columns, names=table.names)


#: `unpack` with a cache of the tables that were used last. `PackedTable` is hashed by identity.
unpacked = lru_cache(maxsize=_MOST_UNPACKED)(unpack)


def _by_time(start: NDArray[np.int64]) -> NDArray[np.intp]:
    # Sorting is fast, because each thread's and stream's events are sorted. `moved` restores the order of equal starts.
    return np.argsort(start, kind="stable")


def _within(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        raise ValueError("rows outside of the table")
    return rows


def decompressed(data: bytes, size: int) -> bytes:
    """Decompress `data` to `size` bytes, without using more memory if `data` contains more.

    Raises:
        ValueError: the bytes are damaged, or decompress to another size.
    """
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(content) != size or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"the compressed bytes do not have {size} bytes")
    return content


class ColumnWriter:
    """Collect columns of integers, each with as few bytes per value as its largest value needs.

    Bytes are stored in order of significance, the lowest bytes of all values first, because this compresses well.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: NDArray[Any]) -> PackedColumn:
        """Add a column, and return its description."""
        signed = np.ascontiguousarray(values, np.int64)
        if len(signed) and signed[0] == signed[-1] and not (signed != signed[0]).any():
            return PackedColumn(len(signed), 0, int(signed[0]))
        # Zigzag encoding: small negative numbers become small positive numbers.
        unsigned = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
        most = int(unsigned.max(initial=0))
        width = next(width for width in (1, 2, 4, 8) if most < 256**width)
        planes = unsigned.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
        column = PackedColumn(len(values), width, self._size)
        self._parts.append(np.ascontiguousarray(planes).tobytes())
        self._size += len(values) * width
        return column

    def compressed(self) -> tuple[int, bytes]:
        """Return (number of bytes of all columns, the compressed bytes)."""
        return self._size, zlib.compress(b"".join(self._parts), _LEVEL)


class ColumnReader:
    """Read columns of integers.

    Raises:
        ValueError: the bytes are damaged, or decompress to another size.
    """

    def __init__(self, size: int, data: bytes) -> None:
        self._data = decompressed(data, size)

    def column(self, column: PackedColumn) -> NDArray[Any]:
        """Return a column as integers of `column.width` bytes, or of 8 bytes if all values are equal."""
        if column.width == 0 and 0 <= column.length <= _MOST_VALUES and -(2**63) <= column.begin < 2**63:
            return np.broadcast_to(np.int64(column.begin), column.length)
        end = column.begin + column.length * column.width
        if column.width not in (1, 2, 4, 8) or column.length < 0 or not 0 <= column.begin <= end <= len(self._data):
            raise ValueError("a column outside of the packed bytes")
        planes = np.frombuffer(self._data, np.uint8, column.length * column.width, column.begin)
        lowest, *higher = planes.reshape(column.width, column.length)
        # All arrays keep the width of the column, because converting them to int64 would take most of the time.
        unsigned = lowest.astype(f"<u{column.width}")
        for significance, plane in enumerate(higher, 1):
            unsigned |= plane.astype(unsigned.dtype) << unsigned.dtype.type(8 * significance)
        # Undo the zigzag encoding of `ColumnWriter`.
        signs = -(unsigned & unsigned.dtype.type(1))
        unsigned >>= unsigned.dtype.type(1)
        unsigned ^= signs
        return unsigned.view(f"<i{column.width}")
