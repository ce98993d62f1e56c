"""Write a trace as a digest."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from typing import Any, TypeVar

import msgspec
import numpy as np

from gpudiag.model.event import NO_NUMBER, EventWaits, Trace
from gpudiag.model.large_jobs.packed_events import ColumnWriter, PackedEvents, pack
from gpudiag.model.sanitize import without_surrogates
from gpudiag.trace.readers.digest.layout import DIGEST_SCHEMA, SAME, Call, Group, Header, PartColumns, call_of

Value = TypeVar("Value", bound=Hashable)
#: zlib's level of strongest compression.
_LEVEL = 9


def encode(trace: Trace) -> bytes:
    """Return a trace as a digest. Decoding the digest gives an equal trace, except for its source."""
    table = trace.events.table if isinstance(trace.events, PackedEvents) else pack(trace.events)
    writer = ColumnWriter()
    ranks: dict[tuple[int, ...], int] = {}  # value → index in `Header.ranks`
    calls: dict[Call, int] = {}  # value → index in `Header.calls`
    numbers = [_index(calls, call_of(call, _index(ranks, call.group_ranks))) for call in trace.collectives]
    collectives = {
        "row": [call.row for call in trace.collectives],
        "call": numbers,
        "sequence": [NO_NUMBER if call.sequence is None else call.sequence for call in trace.collectives],
    }
    groups = {name: Group(_index(ranks, group.ranks), group.description) for name, group in trace.groups.items()}
    parts = {
        "collectives": _columns(writer, collectives),
        "step_marks": tuple(
            _columns(writer, {"row": marks.row, "number": marks.number}, source=marks.source)
            for marks in trace.step_marks
        ),
        "event_waits": _columns(
            writer, {name: getattr(trace.event_waits, name) for name in EventWaits.__struct_fields__}
        ),
        "modules": None
        if trace.modules is None
        else _columns(
            writer,
            {name: getattr(trace.modules, name) for name in ("row", "module", "backward")},
            modules=trace.modules.modules,
        ),
        "operator_work": None
        if trace.operator_work is None
        else _columns(
            writer,
            {name: getattr(trace.operator_work, name) for name in ("row", "flops", "moved_bytes", "precision")},
        ),
    }
    size, data = writer.compressed()
    header = Header(
        trace=trace.source,
        size=size,
        events=table.columns,
        names=table.names,
        events_size=table.size,
        ranks=tuple(ranks),
        calls=tuple(calls),
        groups=groups,
        **parts,  # type: ignore[arg-type]  # the values are of the fields' types
        **{name: getattr(trace, name) for name in SAME},
    )
    try:
        packed = msgspec.msgpack.encode(header)
    except UnicodeEncodeError:  # a host's name may come from a file name that is not UTF-8
        packed = msgspec.msgpack.encode(without_surrogates(msgspec.to_builtins(header)))
    body = msgspec.msgpack.encode((len(packed), zlib.compress(packed, _LEVEL), table.data, data))
    return f"{DIGEST_SCHEMA}\n".encode() + body


def _index(known: dict[Value, int], value: Value) -> int:
    """Return the index of a value among the known values; add the value if it is new."""
    return known.setdefault(value, len(known))


def _columns(writer: ColumnWriter, columns: dict[str, Any], **fields: Any) -> PartColumns:
    return PartColumns({name: writer.add(np.asarray(values, np.int64)) for name, values in columns.items()}, **fields)
