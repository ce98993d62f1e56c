"""Read a digest, without trust in its content."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.model.compute_rates import PRECISIONS
from gpudiag.model.event import (
    HOST,
    NO_NUMBER,
    CollectiveCall,
    Direction,
    EventKind,
    EventTable,
    EventWaits,
    HostMemory,
    ModuleWork,
    OperatorWork,
    ProcessGroup,
    Role,
    StepMarks,
    Trace,
)
from gpudiag.model.packed_events import ColumnReader, PackedTable, stand_in, unpack
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace.readers.digest.layout import DIGEST_SCHEMA, SAME, Columns, File, Header
from gpudiag.trace.unpack import ReadLimits

_AGAIN = "Write it again from its trace: gpudiag digest TRACE."
#: Bytes of an event in memory.
_PER_EVENT = 50
_FILE = msgspec.msgpack.Decoder(File)
_HEADER = msgspec.msgpack.Decoder(Header)


def read_digest(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return the trace of a digest. Raise the errors of `Reader.read`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableInputError(f"{shown} cannot be read: {error.strerror or error}") from error
    return (decode(content, shown, limits),)


def decode(content: bytes, shown: str, limits: ReadLimits) -> Trace:
    """Return the trace of a digest.

    Raises:
        NotATraceError: the bytes are not a digest.
        UnreadableInputError: the digest is damaged, or of a newer version.
        TooLargeError: its events take more memory than the limits allow.
    """
    schema, _, body = content.partition(b"\n")
    if schema != DIGEST_SCHEMA.encode():
        if schema.startswith(b"gpudiag/digest/") and len(schema) < 2 * len(DIGEST_SCHEMA):
            version = schema.decode(errors="replace")
            raise UnreadableInputError(f"{shown} has the schema {version}, not {DIGEST_SCHEMA}", _AGAIN)
        raise NotATraceError(f"{shown} is not a digest of gpudiag", "Write digests with: gpudiag digest TRACES.")
    try:
        size, packed, events, others = _FILE.decode(body)
        if size > limits.max_bytes:
            raise _too_large(shown, size, limits)
        header = _HEADER.decode(_decompressed(packed, size))
        needed = header.events_size + header.size + _PER_EVENT * _events(header)
        if needed > limits.max_bytes:
            raise _too_large(shown, needed, limits)
        table = PackedTable(columns=header.events, names=header.names, size=header.events_size, data=events)
        return _trace(header, table, checked(unpack(table)), ColumnReader(header.size, others), shown)
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise UnreadableInputError(f"{shown} is damaged: {error}", _AGAIN) from error


def _too_large(shown: str, size: int, limits: ReadLimits) -> TooLargeError:
    return TooLargeError(f"{shown} unpacks to {size:,} bytes, more than the limit of {limits.max_bytes:,}")


def _events(header: Header) -> int:
    return max((column.length for column in header.events.values()), default=0)


def _decompressed(packed: bytes, size: int) -> bytes:
    try:
        content = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(content) != size:
        raise ValueError(f"a header of {len(content)} bytes instead of {size}")
    return content


def checked(events: EventTable) -> EventTable:
    """Return the event table if all its values are possible.

    Raises:
        ValueError: a value is impossible.
    """
    limits = {"kind": EventKind, "role": Role, "direction": Direction, "host_memory": HostMemory}
    for name, codes in limits.items():
        if getattr(events, name).max(initial=0) > max(codes):
            raise ValueError(f"an unknown {name} of event")
    _among(events.name, len(events.names), "name")
    if (events.end_ns < events.start_ns).any() or (np.diff(events.start_ns) < 0).any():
        raise ValueError("events out of order")
    if len(events) and events.device.min() < HOST:
        raise ValueError("an impossible device")
    return events


def _among(values: NDArray[Any], count: int, what: str, *, least: int = 0) -> NDArray[Any]:
    if len(values) and (values.min() < least or values.max() >= count):
        raise ValueError(f"{what} outside of its table")
    return values


def _trace(header: Header, table: PackedTable, events: EventTable, reader: ColumnReader, shown: str) -> Trace:
    count = len(events)

    def columns(part: Columns, *, least: dict[str, int] | None = None) -> dict[str, NDArray[np.int64]]:
        read = {name: reader.column(column).astype(np.int64) for name, column in part.columns.items()}
        if len({len(values) for values in read.values()}) > 1:
            raise ValueError("columns of different lengths")
        for name in ("row", "call", "record"):
            if (name in read and part is not header.collectives) or (name == "row" and name in read):
                _among(read[name], count, name, least=(least or {}).get(name, 0))
        return read

    for ranks in header.ranks:
        _among(np.array(ranks, np.int64), MOST_RANKS, "a rank")
    waits = columns(header.event_waits, least={"record": NO_NUMBER})
    return Trace(
        source=shown,
        events=stand_in(table),
        collectives=_collectives(header, columns(header.collectives)),
        groups={
            name: ProcessGroup(header.ranks[group.ranks], group.description) for name, group in header.groups.items()
        },
        step_marks=tuple(
            StepMarks(source=marks.source, row=read["row"].astype(np.intp), number=read["number"])
            for marks, read in ((marks, columns(marks)) for marks in header.step_marks)
        ),
        event_waits=EventWaits(**{name: waits[name] for name in EventWaits.__struct_fields__}),
        modules=None if header.modules is None else _modules(header.modules, columns(header.modules)),
        operator_work=None if header.operator_work is None else _work(columns(header.operator_work)),
        **{name: getattr(header, name) for name in SAME},
    )


def _collectives(header: Header, columns: dict[str, NDArray[np.int64]]) -> tuple[CollectiveCall, ...]:
    _among(columns["call"], len(header.calls), "call")
    rows = zip(columns["row"].tolist(), columns["call"].tolist(), columns["sequence"].tolist(), strict=True)
    for call in header.calls:
        if not 0 <= call.ranks < len(header.ranks):
            raise ValueError("ranks outside of their table")
    return tuple(
        CollectiveCall(
            row=row,
            operation=header.calls[call].operation,
            group=header.calls[call].group,
            group_ranks=header.ranks[header.calls[call].ranks],
            size_bytes=header.calls[call].size_bytes,
            sequence=None if sequence == NO_NUMBER else sequence,
            peer=header.calls[call].peer,
            processor_share=header.calls[call].processor_share,
        )
        for row, call, sequence in rows
    )


def _modules(part: Columns, columns: dict[str, NDArray[np.int64]]) -> ModuleWork:
    _among(columns["module"], len(part.modules), "module")
    return ModuleWork(
        modules=part.modules,
        row=columns["row"],
        module=columns["module"].astype(np.int32),
        backward=columns["backward"].astype(np.bool_),
    )


def _work(columns: dict[str, NDArray[np.int64]]) -> OperatorWork:
    _among(columns["precision"], len(PRECISIONS), "precision", least=NO_NUMBER)
    return OperatorWork(
        row=columns["row"],
        flops=columns["flops"],
        moved_bytes=columns["moved_bytes"],
        precision=columns["precision"].astype(np.int8),
    )
