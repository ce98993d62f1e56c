"""From the planes of an XSpace to one table of events: what one process recorded on its host and all of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import (
    HOST,
    NO_CORRELATION,
    NO_SIZE,
    CollectiveCall,
    Direction,
    EventKind,
    EventTable,
    Role,
    StepMarks,
    Trace,
)
from gpudiag.trace.readers.cuda_calls import (
    count_unrecorded_graphs,
    is_graph_launch,
    is_memset,
    roles_without_idle_launches,
)
from gpudiag.trace.readers.names import kernel_operation
from gpudiag.trace.readers.xspace.communication_names import CommunicationNames, find_communication, of_loader
from gpudiag.trace.readers.xspace.copies import copy_of, set_bytes
from gpudiag.trace.readers.xspace.host import NO_STEP, host_kinds, host_operation, host_roles
from gpudiag.trace.readers.xspace.placement import NO_DEVICE, placed
from gpudiag.trace.readers.xspace.planes import BUFFER, COPY_DETAILS, CORRELATION, DEVICE, SET_DETAILS, Plane
from gpudiag.trace.readers.xspace.program import framework_of, workload_of

_DAY_NS = 86_400 * 10**9
#: Line timestamps below this count from the begin of the profile and not from 1970.
_LEAST_UNIX_NS = 10**17
#: No GPU has as many compute units.
_MOST_UNITS = 10_000
#: What the driver is asked to do for device work, and what that is: TensorFlow names calls after what they launch.
_CALLS = {
    (EventKind.KERNEL, Direction.NONE): ("cuLaunchKernel", Role.LAUNCH),
    (EventKind.MEMSET, Direction.NONE): ("cuMemsetAsync", Role.LAUNCH),
    (EventKind.COPY, Direction.NONE): ("cuMemcpyAsync", Role.COPY),
    (EventKind.COPY, Direction.HOST_TO_DEVICE): ("cuMemcpyHtoDAsync", Role.COPY),
    (EventKind.COPY, Direction.DEVICE_TO_HOST): ("cuMemcpyDtoHAsync", Role.COPY),
    (EventKind.COPY, Direction.DEVICE_TO_DEVICE): ("cuMemcpyDtoDAsync", Role.COPY),
    (EventKind.COPY, Direction.HOST_TO_HOST): ("cuMemcpyHtoHAsync", Role.COPY),
    (EventKind.COPY, Direction.PEER): ("cuMemcpyPeerAsync", Role.COPY),
}


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A whole process.

    Attributes:
        trace: everything in one table, rank unknown.
        launches_on: int16[n], for each runtime call the GPU that it gives work to; `NO_DEVICE` for all else.
        runs_on: int16[n], without GPUs: for each op which of several logical devices ran it; `NO_DEVICE` for all else.
        training_thread: the thread with the step marks, None without any.
        needs_exchange: bool[n], the work of GPUs, or ops, that could not begin before an exchange had ended.
    """

    trace: Trace
    launches_on: NDArray[np.int16]
    runs_on: NDArray[np.int16]
    training_thread: int | None
    needs_communication: NDArray[np.bool_]


class _Names:
    """Distinct names of all planes."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    def all(self) -> tuple[str, ...]:
        return tuple(self._index)


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of an `EventTable` for one plane, and what comes with them."""

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int16]
    correlation: NDArray[np.int64]
    size: NDArray[np.int64]
    role: NDArray[np.uint8]
    direction: NDArray[np.uint8]
    host_memory: NDArray[np.uint8]
    target: NDArray[np.int16]
    buffer: NDArray[np.int64]
    needs_communication: NDArray[np.bool_]
    of_loader: NDArray[np.bool_]


def assemble(
    planes: Sequence[Plane], *, shown: str, host: str, begun_ns: int, notes: list[str], unread: tuple[str, ...] = ()
) -> Process:
    """One table of the planes of one process.

    Args:
        planes: its host and its GPUs.
        shown: how to call the file.
        host: host name.
        begun_ns: when the profile began (Unix, ns); 0 where it does not say.
        notes: what had to be repaired is appended here.
        unread: accelerators whose planes are not among these.
    """
    names = _Names()
    devices = [plane for plane in planes if plane.device is not None]
    base = min((plane.base_ns for plane in planes if len(plane.name)), default=0)
    communications = find_communication(planes)
    parts: list[_Columns] = [_device_columns(plane, names, base, communications) for plane in devices]
    training = None
    launched = _launched(parts)
    for plane in planes:
        if plane.device is None:
            columns, line = _host_columns(plane, names, base, launched, communications, has_devices=bool(devices))
            parts.append(columns)
            training = plane.lines[line][0] if line is not None and training is None else training
    joined = {field: np.concatenate([getattr(part, field) for part in parts]) for field in _Columns.__struct_fields__}
    order, first = _order(joined, notes)
    joined = {field: column[order] for field, column in joined.items()}
    table = EventTable(
        kind=joined["kind"],
        name=joined["name"],
        start_ns=joined["start"] - first,
        end_ns=joined["end"] - first,
        thread=joined["thread"],
        device=joined["device"],
        correlation=joined["correlation"],
        size_bytes=joined["size"],
        role=joined["role"],
        direction=joined["direction"],
        host_memory=joined["host_memory"],
        names=names.all(),
    )
    table = msgspec.structs.replace(table, role=roles_without_idle_launches(table))
    origin = base + first + (0 if base + first >= _LEAST_UNIX_NS else begun_ns)
    trace = Trace(
        source=shown,
        framework=(framework := framework_of(planes)),
        events=table,
        origin_ns=max(origin, 1),  # one process has one clock, whatever it counts from
        host=host,
        device_names={plane.device: _model(plane) for plane in devices if plane.device is not None},
        collectives=_collectives(table, joined["buffer"]),
        step_marks=step_marks_of(table),
        waits_in_collectives=True,
        uses_devices=bool((table.kind == EventKind.RUNTIME).any()),
        workload=workload_of(planes, framework),
        unread_devices=unread,
        unrecorded_graphs=count_unrecorded_graphs(table),
        notes=tuple(notes),
    )
    nowhere = np.full(len(table), NO_DEVICE, np.int16)
    return Process(
        trace=trace,
        launches_on=joined["target"] if devices else nowhere,
        runs_on=nowhere if devices else joined["target"],
        training_thread=training,
        needs_communication=joined["needs_communication"],
    )


def _model(plane: Plane) -> str:
    """Return the model of a GPU; where only its vendor is said, as on AMD's, with what tells models apart."""
    for field in ("gpu_device_name", "device_type_string"):
        model: Any = plane.about.get(field, "")
        if model and isinstance(model, str):
            return model
    vendor, units = plane.about.get("device_vendor", ""), plane.about.get("core_count", 0)
    if not vendor or not isinstance(vendor, str):
        return ""
    count = f" with {units} compute units" if isinstance(units, int) and 0 < units < _MOST_UNITS else ""
    return f"{vendor} GPU{count}"


def _device_columns(plane: Plane, names: _Names, base: int, communications: CommunicationNames) -> _Columns:
    count = len(plane.name)
    kind = np.full(count, EventKind.KERNEL, np.uint8)
    size = np.full(count, NO_SIZE, np.int64)
    direction, host_memory = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    index = np.array([names(name) for name in plane.names], np.int32)
    name = index[plane.name]
    for stat, what in ((COPY_DETAILS, EventKind.COPY), (SET_DETAILS, EventKind.MEMSET)):
        events, refs = plane.stats.get(stat, (np.empty(0, np.int64), np.empty(0, np.int64)))
        kind[events] = what
        for ref in distinct(refs).tolist():
            mine = events[refs == ref]
            details = plane.texts.get(ref, "")
            if what == EventKind.MEMSET:
                size[mine] = set_bytes(details)
                continue
            for plain in distinct(plane.name[mine]).tolist():
                of_name = mine[plane.name[mine] == plain]
                copy = copy_of(plane.names[plain], details)
                name[of_name], size[of_name] = names(copy.name), copy.size_bytes
                direction[of_name], host_memory[of_name] = copy.direction, copy.host_memory
    _without_details(plane, kind)
    communicates = np.array([kernel_operation(text) is not None for text in plane.names], np.bool_)
    role = np.where(kind == EventKind.KERNEL, np.uint8(Role.COMPUTE), np.uint8(Role.COPY))
    role[(kind == EventKind.KERNEL) & communicates[plane.name]] = Role.COMMUNICATION
    role[(kind == EventKind.COPY) & ((direction == Direction.PEER) | communications.sends(plane))] = Role.COMMUNICATION
    role[(kind == EventKind.KERNEL) & communications.adds(plane)] = Role.BUCKET_COPY
    streams = np.array([ident for ident, _ in plane.lines], np.int64)
    return _Columns(
        kind=kind,
        name=name,
        start=plane.start_ns + (plane.base_ns - base),
        end=plane.end_ns + (plane.base_ns - base),
        thread=streams[plane.line] if len(streams) else plane.line,
        device=np.full(count, plane.device, np.int16),
        correlation=_correlation(plane),
        size=size,
        role=role,
        direction=direction,
        host_memory=host_memory,
        target=np.full(count, NO_DEVICE, np.int16),
        buffer=plane.whole(BUFFER, 0),
        needs_communication=(role == Role.COMMUNICATION) | communications.needs(plane),
        of_loader=of_loader(plane),
    )


def _without_details(plane: Plane, kind: NDArray[np.uint8]) -> None:
    """Copies whose details the profiler left out are known by their names."""
    for index, name in enumerate(plane.names):
        if name.startswith(("Memcpy", "Memset")):
            what = EventKind.COPY if name.startswith("Memcpy") else EventKind.MEMSET
            kind[(plane.name == index) & (kind == EventKind.KERNEL)] = what


def _correlation(plane: Plane) -> NDArray[np.int64]:
    found = plane.whole(CORRELATION, NO_CORRELATION)
    return np.where(found <= 0, NO_CORRELATION, found)  # CUPTI counts from 1


class _Launched(msgspec.Struct, frozen=True):
    """Device work by correlation id, sorted: what each id launched and where."""

    correlation: NDArray[np.int64]
    kind: NDArray[np.uint8]
    device: NDArray[np.int16]
    direction: NDArray[np.uint8]
    of_loader: NDArray[np.bool_]


def _launched(parts: Sequence[_Columns]) -> _Launched:
    if not parts:
        none = np.empty(0, np.uint8)
        return _Launched(none.astype(np.int64), none, none.astype(np.int16), none, none.astype(np.bool_))
    columns = {field: np.concatenate([getattr(part, field) for part in parts]) for field in _Launched.__struct_fields__}
    order = np.argsort(columns["correlation"], kind="stable")
    order = order[columns["correlation"][order] != NO_CORRELATION]
    return _Launched(**{field: column[order] for field, column in columns.items()})


def _host_columns(
    plane: Plane,
    names: _Names,
    base: int,
    launched: _Launched,
    communications: CommunicationNames,
    *,
    has_devices: bool,
) -> tuple[_Columns, int | None]:
    """The columns of a host plane, and the index of the line with the step marks."""
    kind, step, training = host_kinds(plane, has_devices=has_devices)
    index = np.array([names(name) for name in plane.names], np.int32)
    name = index[plane.name] if len(index) else np.empty(0, np.int32)
    correlation = _correlation(plane)
    role = host_roles(plane, kind, step, communications, has_devices=has_devices)
    target = np.where(kind == EventKind.RUNTIME, plane.whole(DEVICE, NO_DEVICE), NO_DEVICE)
    if not has_devices:
        target = placed(plane)
    # Memsets and graphs run nothing at times, and a call of HIP is called as HIP calls it.
    known = np.array([is_memset(text) or is_graph_launch(text) for text in plane.names], np.bool_)
    of_hip = np.array([text.startswith("hip") for text in plane.names], np.bool_)
    calls = np.flatnonzero(kind == EventKind.RUNTIME)
    if len(calls) and len(launched.correlation):
        slot = np.searchsorted(launched.correlation, correlation[calls])
        slot = np.minimum(slot, len(launched.correlation) - 1)
        found = launched.correlation[slot] == correlation[calls]
        # CUPTI gives ids to what launches: of this nothing was recorded.
        lost = calls[~found & (correlation[calls] != NO_CORRELATION) & ~known[plane.name[calls]]]
        call, does = _CALLS[EventKind.KERNEL, Direction.NONE]
        name[lost], role[lost] = names(call), does
        calls, slot = calls[found], slot[found]
        target[calls] = launched.device[slot]
        for (what, direction), (call, does) in _CALLS.items():
            mine = calls[(launched.kind[slot] == what) & (launched.direction[slot] == direction)]
            if len(mine):
                role[mine] = does
                mine = mine[~of_hip[plane.name[mine]]]
                name[mine] = names(call)
        # Who waits for it is the loader, in a thread of its own.
        role[calls[launched.of_loader[slot] & (launched.direction[slot] == Direction.DEVICE_TO_HOST)]] = Role.LAUNCH
    for mark in np.flatnonzero(step != NO_STEP).tolist():
        if kind[mark] == EventKind.ANNOTATION:
            # As TensorFlow's own TraceMe encodes it.
            name[mark] = names(f"{plane.names[plane.name[mark]]}#step_num={step[mark]}#")
    threads = np.array([ident for ident, _ in plane.lines], np.int64)
    columns = _Columns(
        kind=kind,
        name=name,
        start=plane.start_ns + (plane.base_ns - base),
        end=plane.end_ns + (plane.base_ns - base),
        thread=threads[plane.line] if len(threads) else plane.line,
        device=np.full(len(kind), HOST, np.int16),
        correlation=np.where(kind == EventKind.RUNTIME, correlation, NO_CORRELATION),
        size=np.full(len(kind), NO_SIZE, np.int64),
        role=role,
        direction=np.zeros(len(kind), np.uint8),
        host_memory=np.zeros(len(kind), np.uint8),
        target=np.clip(target, NO_DEVICE, np.iinfo(np.int16).max).astype(np.int16),
        buffer=np.zeros(len(kind), np.int64),
        needs_communication=communications.needs(plane),
        of_loader=np.zeros(len(kind), np.bool_),
    )
    return columns, training


def _order(columns: dict[str, NDArray[Any]], notes: list[str]) -> tuple[NDArray[np.intp], int]:
    """Rows that have possible times, by start (ties: the longer first), and the first start."""
    start, end = columns["start"], columns["end"]
    length = end - start
    possible = (length >= 0) & (length <= _DAY_NS)
    if possible.any():
        possible &= np.abs(start - np.median(start[possible])) <= _DAY_NS
    if not possible.all():
        notes.append(f"{int((~possible).sum())} events had impossible times (off by more than a day) and were left out")
    rows = np.flatnonzero(possible)
    order = rows[np.lexsort((-end[rows], start[rows]))]
    return order, int(start[order[0]]) if len(order) else 0


def _collectives(table: EventTable, buffer: NDArray[np.int64]) -> tuple[CollectiveCall, ...]:
    """What communicates: kernels, or in a process without GPUs the ops that wait for other processes.

    Their process group is not recorded: TensorFlow's replicas are one group.
    """
    names = {row: table.name_of(row) for row in np.flatnonzero(table.role == Role.COMMUNICATION).tolist()}
    rows = [row for row, name in names.items() if kernel_operation(name) or host_operation(name)]
    return tuple(
        CollectiveCall(
            row=row,
            operation=kernel_operation(names[row]) or host_operation(names[row]) or "",
            size_bytes=int(buffer[row]) if buffer[row] > 0 else None,
        )
        for row in rows
    )


def step_marks_of(table: EventTable) -> tuple[StepMarks, ...]:
    """The step marks of a table; TensorFlow's `Trace(…, step_num=…)` carries the number in the name."""
    rows = np.flatnonzero(table.role == Role.STEP_MARK)
    if not len(rows):
        return ()
    number = [int(table.name_of(row).rpartition("=")[2].rstrip("#")) for row in rows.tolist()]
    return (StepMarks(source="step_num", row=rows, number=np.array(number, np.int64)),)
