"""Read a digest, without trust in its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.compute_rates import PRECISIONS
from gpudiag.model.event import (
    HOST,
    NO_NUMBER,
    NO_SIZE,
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
from gpudiag.model.large_jobs.packed_events import ColumnReader, PackedTable, decompressed, stand_in, unpacked
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.readers.digest.layout import DIGEST_SCHEMA, SAME, File, Header, PartColumns
from gpudiag.trace.unpack import ReadLimits, SizeBound, read_whole

_AGAIN = "Write it again from its trace: gpudiag digest TRACE."
#: Bytes of an event in memory.
_PER_EVENT = 50
#: Bytes in memory of the details of a communication event.
_PER_CALL = 200
#: Bytes in memory of each byte of the header.
_PER_HEADER_BYTE = 10
#: Largest time (Unix, ns) and length of a trace: the year 2116.
_LAST_NS = 2**62
#: Step numbers and amounts of work (FLOPs, bytes) must be below this number.
_MOST = 2**62 + 1
_FILE = msgspec.msgpack.Decoder(File)
_HEADER = msgspec.msgpack.Decoder(Header)


def read_digest(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return the trace of a digest. Raise the errors of `Reader.read`."""
    return (decode(bytes(read_whole(path, shown, limits, binary=True)), shown, limits),)


def decode(content: bytes, shown: str, limits: ReadLimits) -> Trace:
    """Return the trace of a digest.

    Raises:
        NotATraceError: the bytes are not a digest.
        UnreadableInputError: the digest is damaged, or of a newer version.
        TooLargeError: the digest's events take more memory than the limits allow.
    """
    schema, _, body = content.partition(b"\n")
    if schema != DIGEST_SCHEMA.encode():
        if schema.startswith(b"gpudiag/digest/") and len(schema) < 2 * len(DIGEST_SCHEMA):  # a longer line is no schema
            version = with_escapes(schema.decode(errors="replace"))
            raise UnreadableInputError(f"{shown} has the schema {version}, not {DIGEST_SCHEMA}", _AGAIN)
        raise NotATraceError(f"{shown} is not a digest of gpudiag", "Write digests with: gpudiag digest TRACES.")
    bound = SizeBound(shown, limits)
    try:
        size, packed, events, others = _FILE.decode(body)
        bound.check(_PER_HEADER_BYTE * size, len(content))
        header = _HEADER.decode(decompressed(packed, size))
        bound.check(_memory(header), len(content))
        table = PackedTable(columns=header.events, names=header.names, size=header.events_size, data=events)
        return _trace(header, table, checked(unpacked(table)), ColumnReader(header.size, others), shown)
    except (msgspec.MsgspecError, ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise UnreadableInputError(f"{shown} is damaged: {with_escapes(str(error))}", _AGAIN) from error


def _memory(header: Header) -> int:
    """Return the bytes of memory of all columns. Columns of equal values take memory, but no bytes on disk.

    Columns outside of the event table become int64.
    """
    parts = (header.collectives, *header.step_marks, header.event_waits, header.modules, header.operator_work)
    lengths = [column.length for part in parts if part is not None for column in part.columns.values()]
    rows = max((column.length for column in header.events.values()), default=0)
    calls = max((column.length for column in header.collectives.columns.values()), default=0)
    return header.events_size + header.size + _PER_EVENT * rows + 8 * sum(lengths) + _PER_CALL * calls


def checked(events: EventTable) -> EventTable:
    """Return the event table if all its values are possible.

    Raises:
        ValueError: a value is impossible.
    """
    if not len(events):
        raise ValueError("it has no events")
    limits = {"kind": EventKind, "role": Role, "direction": Direction, "host_memory": HostMemory}
    for name, codes in limits.items():
        if getattr(events, name).max() > max(codes):
            raise ValueError(f"an unknown {name} of event")
    _among(events.name, len(events.names), "name")
    _ascending(events.start_ns)
    first, last = int(events.start_ns.min()), int(events.end_ns.max())
    if (events.end_ns < events.start_ns).any() or first < -_LAST_NS or last > _LAST_NS or last - first > _LAST_NS:
        raise ValueError("impossible times of events")
    if events.device.min() < HOST or events.size_bytes.min() < NO_SIZE:
        raise ValueError("an impossible device or size")
    return events


def _ascending(values: NDArray[Any]) -> NDArray[Any]:
    if (values[1:] < values[:-1]).any():
        raise ValueError("rows out of order")
    return values


def _among(values: NDArray[Any], count: int, what: str, *, least: int = 0) -> NDArray[Any]:
    if len(values) and (values.min() < least or values.max() >= count):
        raise ValueError(f"{what} outside of its table")
    return values


def _trace(header: Header, table: PackedTable, events: EventTable, reader: ColumnReader, shown: str) -> Trace:
    """Return the trace of a header.

    `events` is the unpacked `table`, used only to check rows. `reader` has the columns outside of the event table.
    """

    def columns(part: PartColumns, by: str = "row") -> dict[str, NDArray[np.int64]]:
        """Return name → values of a part's columns. Refuse a part whose rows (column `by`) are not ascending."""
        read = {name: reader.column(column).astype(np.int64) for name, column in part.columns.items()}
        if len({len(values) for values in read.values()}) > 1:
            raise ValueError("columns of different lengths")
        _ascending(_among(read[by], len(events), "row"))
        return read

    for group in header.groups.values():
        if group.ranks >= len(header.ranks):
            raise ValueError("ranks outside of their table")
    waits = columns(header.event_waits, "call")
    _among(waits["record"], len(events), "record", least=NO_NUMBER)
    same: dict[str, Any] = {name: getattr(header, name) for name in SAME}
    return Trace(
        source=shown,
        events=stand_in(table),
        collectives=_collectives(header, columns(header.collectives)),
        groups={
            name: ProcessGroup(header.ranks[group.ranks], group.description) for name, group in header.groups.items()
        },
        step_marks=tuple(
            StepMarks(
                source=marks.source,
                row=read["row"].astype(np.intp),
                number=_among(read["number"], _MOST, "step", least=NO_NUMBER),
            )
            for marks, read in ((marks, columns(marks)) for marks in header.step_marks)
        ),
        event_waits=EventWaits(**{name: waits[name] for name in EventWaits.__struct_fields__}),
        modules=None if header.modules is None else _modules(header.modules, columns(header.modules)),
        operator_work=None if header.operator_work is None else _work(columns(header.operator_work)),
        **same | {"notes": tuple(map(with_escapes, header.notes))},
    )


def _collectives(header: Header, columns: dict[str, NDArray[np.int64]]) -> tuple[CollectiveCall, ...]:
    """Return the communication events; `columns` are those of `Header.collectives`."""
    _among(columns["call"], len(header.calls), "call")
    _among(columns["sequence"], 2**63, "sequence", least=NO_NUMBER)
    rows = zip(columns["row"].tolist(), columns["call"].tolist(), columns["sequence"].tolist(), strict=True)
    for call in header.calls:
        if call.ranks >= len(header.ranks):
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


def _modules(part: PartColumns, columns: dict[str, NDArray[np.int64]]) -> ModuleWork:
    """Return the module of each event, from the part's columns (name → values)."""
    _among(columns["module"], len(part.modules), "module")
    return ModuleWork(
        modules=part.modules,
        row=columns["row"],
        module=columns["module"].astype(np.int32),
        backward=columns["backward"].astype(np.bool_),
    )


def _work(columns: dict[str, NDArray[np.int64]]) -> OperatorWork:
    """Return the work of operators from columns (name → values). Refuse values out of range."""
    _among(columns["precision"], len(PRECISIONS), "precision", least=NO_NUMBER)
    return OperatorWork(
        row=columns["row"],
        flops=_among(columns["flops"], _MOST, "work", least=NO_NUMBER),
        moved_bytes=_among(columns["moved_bytes"], _MOST, "work", least=NO_NUMBER),
        precision=columns["precision"].astype(np.int8),
    )
