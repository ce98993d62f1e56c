"""Read sizes and communicators of collectives from the payloads of NCCL's NVTX ranges.

NCCL attaches a payload to each range: the size of the message, and since 2.21 the communicator. `nsys export
--include-blobs=true` writes payloads as binary data behind a header of 32 bytes, and their layout as tables:

    NVTX_EVENTS.binaryData         domain (8 bytes) | schema (8) | size (8) | size with header (8) | payload
    NVTX_PAYLOAD_SCHEMA_ENTRIES    schema, "Message size [bytes]", offset in the payload
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from gpudiag.model.event import EventKind, EventTable
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace.readers.kineto.event_args import CollectiveFacts
from gpudiag.trace.readers.names import events_named, normal_operation
from gpudiag.trace.readers.nsys.database import MISSING, Database, Window
from gpudiag.trace.readers.nsys.nvtx_names import is_enqueue

_RANGES = "NVTX_EVENTS"
_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEADER = 32
_THREAD_BITS = 24
#: Only these bits of domains and schemas are compared.
_LOW = 0xFFFFFFFF
#: Beginning of a field's label, in lower case → (name of the field, bytes).
_FIELDS = {"communicator id": ("communicator", 8), "message size": ("size", 8), "no. of ranks": ("members", 4)}
#: Operations whose message is the whole input of a rank.
_WHOLE = {"all_reduce", "broadcast", "reduce", "send", "recv"}

#: (process, thread, start in ns) of a range → field → value.
Payloads = dict[tuple[int, int, int], dict[str, int]]


class _Field(NamedTuple):
    name: str
    offset: int
    length: int


def read_payloads(database: Database, window: Window | None, most: int) -> Payloads:
    """Return the payloads that have a known field; none if there are more than `most`, which limits memory."""
    layouts = _layouts(database)
    if not layouts or "binaryData" not in database.tables.get(_RANGES, frozenset()):
        return {}
    payloads: Payloads = {}
    columns = {"start": MISSING, "globalTid": MISSING}
    rows_and_blobs = database.integers(
        _RANGES, columns, window=window, where="typeof(\"binaryData\") = 'blob'", text="binaryData", as_hex=True
    )
    for rows, blobs in rows_and_blobs:
        for (start, thread), blob in zip(rows.tolist(), blobs, strict=True):
            if fields := _decoded(bytes.fromhex(blob), layouts):
                payloads[thread >> _THREAD_BITS, thread & ((1 << _THREAD_BITS) - 1), start] = fields
        if len(payloads) > most:
            return {}
    return payloads


def _layouts(database: Database) -> dict[tuple[int, int], list[_Field]]:
    """Return (domain, schema) → fields of the payload that are read."""
    layouts: dict[tuple[int, int], list[_Field]] = defaultdict(list)
    columns = {"domainId": MISSING, "schemaId": MISSING, "offset": MISSING}
    for rows, labels in database.integers(_ENTRIES, columns, text="name"):
        for (domain, schema, offset), label in zip(rows.tolist(), labels or [""] * len(rows), strict=True):
            known_field = next((field for start, field in _FIELDS.items() if label.lower().startswith(start)), None)
            if known_field is not None and 0 <= offset < 256:  # `as_hex` yields only the first 256 bytes
                layouts[domain & _LOW, schema & _LOW].append(_Field(known_field[0], offset, known_field[1]))
    return layouts


def _decoded(blob: bytes, layouts: dict[tuple[int, int], list[_Field]]) -> dict[str, int]:
    """Return field → value of a payload in binary form, for the fields in its layout."""
    domain, schema = (int.from_bytes(blob[begin : begin + 8], "little") & _LOW for begin in (0, 8))
    fields = {}
    for field in layouts.get((domain, schema), ()):
        raw = blob[_HEADER + field.offset : _HEADER + field.offset + field.length]
        if len(raw) == field.length:
            fields[field.name] = int.from_bytes(raw, "little")
    return fields


def collective_facts(events: EventTable, process: int, first_ns: int, payloads: Payloads) -> dict[int, CollectiveFacts]:
    """Return row of a range of NCCL → facts from its payload. Times of `events` count from `first_ns`."""
    if not payloads:
        return {}
    members = {
        fields["communicator"]: fields["members"]
        for (owner, _, _), fields in payloads.items()
        if owner == process and fields.keys() >= {"communicator", "members"} and 0 < fields["members"] <= MOST_RANKS
    }
    facts = {}
    for row in np.flatnonzero((events.kind == EventKind.OPERATOR) & events_named(events, is_enqueue)).tolist():
        fields = payloads.get((process, int(events.thread[row]), int(events.start_ns[row]) + first_ns))
        operation = normal_operation(events.name_of(row))
        if fields and operation:
            facts[row] = _facts(events.name_of(row), operation, fields, members)
    return facts


def _facts(name: str, operation: str, fields: dict[str, int], members: dict[int, int]) -> CollectiveFacts:
    """Return the facts in a payload (field → value). `members` maps communicators to their numbers of ranks.

    Sizes are stated only for operations in `_WHOLE`, for reduce_scatter, and for all_gather (the input of a rank).
    """
    communicator, size = fields.get("communicator"), fields.get("size")
    count = members.get(communicator, 0) if communicator is not None else 0
    if size is not None and size >= 2**50:  # damaged
        size = None
    in_bytes = size if operation in _WHOLE else None
    if operation == "reduce_scatter" and size is not None:  # NCCL states the size of the output
        in_bytes = size * count or None  # `count` is 0 if unknown
    return CollectiveFacts(
        word=name.rpartition(":")[2],
        group="" if communicator is None else f"{communicator:#x}",
        members=count,
        in_bytes=in_bytes,
        shaped_bytes=size if operation == "all_gather" else None,  # `size_as` multiplies it by the number of ranks
    )
