"""Define the layout of digests, schema `gpudiag/digest/1`.

A digest is one line with its schema, then a MessagePack array (`File`). The header is a MessagePack map (`Header`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from gpudiag.model.analysis import WorkloadKind
from gpudiag.model.event import HOST, CollectiveCall, Module
from gpudiag.model.large_jobs.packed_events import PackedColumn
from gpudiag.model.quantities import MOST_RANKS, Nanoseconds

Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
WorldSize = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
#: Index into a table, or a number of bytes or events.
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
DeviceOrdinal = Annotated[int, msgspec.Meta(ge=HOST, lt=2**15)]

DIGEST_SCHEMA = "gpudiag/digest/1"


class Group(msgspec.Struct, frozen=True, array_like=True):
    """A process group; `ranks` is an index into `Header.ranks`."""

    ranks: Natural
    description: str


class Call(msgspec.Struct, frozen=True, array_like=True):
    """The details that several communication events share; `ranks` is an index into `Header.ranks`."""

    operation: str
    group: str
    ranks: Natural
    size_bytes: Natural | None
    peer: Rank | None
    processor_share: Annotated[float, msgspec.Meta(ge=0, le=1e3)] | None


class PartColumns(msgspec.Struct, frozen=True):
    """Columns of a part of a trace.

    `source` is set only for step marks. `modules` is set only for `Header.modules`, whose column `module` indexes it.
    """

    columns: dict[str, PackedColumn]
    source: str = ""
    modules: tuple[Module, ...] = ()


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """All of a trace except the values of columns. For fields in `SAME`, see `gpudiag.model.event.Trace`.

    Attributes:
        trace: name of the file that was read.
        size: unpacked bytes of all columns outside of the event table.
        events_size: unpacked bytes of the event table's columns.
        events, names: the event table's columns and names.
        ranks: distinct tuples of ranks in groups.
        calls: distinct details of communication events.
        collectives: columns `row`, `call` (index into `calls`), `sequence` (-1 if none).
    """

    trace: str
    size: Natural
    events: dict[str, PackedColumn]
    names: tuple[str, ...]
    events_size: Natural
    ranks: tuple[tuple[Rank, ...], ...]
    calls: tuple[Call, ...]
    collectives: PartColumns
    step_marks: tuple[PartColumns, ...]
    event_waits: PartColumns
    modules: PartColumns | None
    operator_work: PartColumns | None
    groups: dict[str, Group]
    framework: str
    origin_ns: Nanoseconds
    rank: Rank | None
    world_size: WorldSize | None
    host: str
    device_names: dict[DeviceOrdinal, str]
    waits_in_collectives: bool
    operators_merged: bool
    uses_devices: bool
    workload: WorkloadKind
    unread_devices: tuple[str, ...]
    unrecorded_graphs: Natural
    dropped_events: Natural
    notes: tuple[str, ...]


#: Fields that a header has in common with `Trace`, with the same values.
SAME = (
    "framework",
    "origin_ns",
    "rank",
    "world_size",
    "host",
    "device_names",
    "waits_in_collectives",
    "operators_merged",
    "uses_devices",
    "workload",
    "unread_devices",
    "unrecorded_graphs",
    "dropped_events",
    "notes",
)

File = tuple[Natural, bytes, bytes, bytes]
"""(Size of the header, the header compressed, the event table's columns compressed, the other columns compressed)."""


def call_of(call: CollectiveCall, ranks: int) -> Call:
    """Return the details of a communication event; `ranks` is the index of its group's ranks."""
    return Call(call.operation, call.group, ranks, call.size_bytes, call.peer, call.processor_share)
