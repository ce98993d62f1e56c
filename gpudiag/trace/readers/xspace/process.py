"""Assemble the planes of an XSpace into one table with all events of one process, on host and GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import (
    HOST,
    NO_CORRELATION,
    NO_NUMBER,
    NO_SIZE,
    CollectiveCall,
    Direction,
    EventKind,
    EventTable,
    Role,
    StepMarks,
    Trace,
)
from gpudiag.trace.readers.names import UNKNOWN, count_unrecorded_graphs, kernel_operation, roles_without_idle_launches
from gpudiag.trace.readers.xspace import hlo
from gpudiag.trace.readers.xspace.communication_names import CommunicationNames, feeds_devices, find_communication
from gpudiag.trace.readers.xspace.host import NO_STEP, framework_of, host_kinds, host_operation, host_roles, workload_of
from gpudiag.trace.readers.xspace.jax_host import shown_name
from gpudiag.trace.readers.xspace.launches import LaunchColumns, LaunchedWork, launched_work, name_calls
from gpudiag.trace.readers.xspace.placement import NO_DEVICE, placed
from gpudiag.trace.readers.xspace.planes import (
    BUFFER,
    COPY_DETAILS,
    CORRELATION,
    DEVICE,
    HLO_MODULE,
    HLO_OP,
    ORDINAL,
    RUN,
    SET_DETAILS,
    Plane,
    device_model,
    parse_copy,
    parse_memset_bytes,
)

_DAY_NS = 86_400 * 10**9
#: Lines whose timestamps are below this count time from the begin of the profile, not from 1970.
_LEAST_UNIX_NS = 10**17
_NUMBERED = re.compile(r"#step_num=(\d+)#$")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A whole process.

    Attributes:
        trace: all events in one table; the rank is unknown.
        launches_on: int16[n], the GPU for which each runtime call launches work; `NO_DEVICE` for all other events.
        runs_on: int16[n], in a process without GPUs, the logical device that ran each op; `NO_DEVICE` otherwise.
        training_thread: the thread with the step marks (JAX: or with the most dispatches); None if there is none.
        needs_communication: bool[n], whether GPU work or an op could begin only after a communication.
        module: int32[n], the XLA module of each op or kernel, as an index into the table's names; `NO_NAME` if unknown.
        run: int64[n], number of the module's run; 0 if unknown.
    """

    trace: Trace
    launches_on: NDArray[np.int16]
    runs_on: NDArray[np.int16]
    training_thread: int | None
    needs_communication: NDArray[np.bool_]
    module: NDArray[np.int32]
    run: NDArray[np.int64]


class _SharedNames:
    """Indices of the distinct names of all planes."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    def all(self) -> tuple[str, ...]:
        return tuple(self._index)


class _Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of an `EventTable` for one plane, and further columns of its events.

    `target` is the GPU for which a call launches work, or the CPU's logical device that runs an op; else `NO_DEVICE`.
    `buffer_bytes` is the size of a collective; 0 if unknown. `feeds_devices` marks a loader's copies. `hlo_op` and
    `module` are names by index. `needs_communication` and `run` are as in `Process`.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int16]
    correlation: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    role: NDArray[np.uint8]
    direction: NDArray[np.uint8]
    host_memory: NDArray[np.uint8]
    target: NDArray[np.int16]
    buffer_bytes: NDArray[np.int64]
    needs_communication: NDArray[np.bool_]
    feeds_devices: NDArray[np.bool_]
    hlo_op: NDArray[np.int32]
    module: NDArray[np.int32]
    run: NDArray[np.int64]


_FURTHER_COLUMNS = ("target", "buffer_bytes", "needs_communication", "feeds_devices", "hlo_op", "module", "run")
#: Index of an unknown name.
NO_NAME = -1


def assemble(
    planes: Sequence[Plane], *, shown: str, host: str, begun_ns: int, notes: list[str], unread: tuple[str, ...] = ()
) -> Process:
    """Assemble one table from the planes of one process.

    Args:
        planes: planes of the host and the GPUs.
        shown: the file's name in messages.
        host: host name.
        begun_ns: start of the profile (Unix, ns); 0 if unknown.
        notes: receives descriptions of repairs.
        unread: names of accelerators whose planes are not read.
    """
    names = _SharedNames()
    devices = [plane for plane in planes if plane.device is not None]
    base = min((plane.base_ns for plane in planes if len(plane.name)), default=0)
    framework = framework_of(planes)
    columns, training_thread = _columns_of(planes, names, base, framework)
    order, first_ns = _order(columns, notes)
    columns = {field: column[order] for field, column in columns.items()}
    further = {field: columns.pop(field) for field in _FURTHER_COLUMNS}
    columns["start_ns"] = columns["start_ns"] - first_ns
    columns["end_ns"] = columns["end_ns"] - first_ns
    table = EventTable(**columns, names=names.all())
    table = msgspec.structs.replace(table, role=roles_without_idle_launches(table))
    origin = base + first_ns + (0 if base + first_ns >= _LEAST_UNIX_NS else begun_ns)
    trace = Trace(
        source=shown,
        framework=framework,
        events=table,
        origin_ns=max(origin, 1),  # positive marks the clock as known; all events share it
        host=host,
        device_names={plane.device: device_model(plane) for plane in devices if plane.device is not None},
        collectives=_collectives(table, further["buffer_bytes"], further["hlo_op"]),
        step_marks=step_marks_of(table),
        waits_in_collectives=True,
        uses_devices=any(CORRELATION in plane.stats for plane in planes if plane.device is None),
        workload=workload_of(planes, framework),
        unread_devices=unread,
        unrecorded_graphs=count_unrecorded_graphs(table),
        notes=tuple(notes),
    )
    none = np.full(len(table), NO_DEVICE, np.int16)
    return Process(
        trace=trace,
        launches_on=further["target"] if devices else none,
        runs_on=none if devices else further["target"],
        training_thread=training_thread,
        needs_communication=further["needs_communication"],
        module=further["module"],
        run=further["run"],
    )


def _columns_of(
    planes: Sequence[Plane], names: _SharedNames, base: int, framework: str
) -> tuple[dict[str, NDArray[Any]], int | None]:
    """Return (joined columns of all planes; training thread of the first host plane that shows one, else None).

    `names` collects all names. Times are in ns since `base`. GPUs come first, because calls are named after GPU work.
    """
    devices = [plane for plane in planes if plane.device is not None]
    communication = find_communication(planes)
    by_plane: list[_Columns] = [_device_columns(plane, names, base, communication) for plane in devices]
    launched = launched_work(_joined(by_plane) if by_plane else {})
    training_thread = None
    for plane in planes:
        if plane.device is None:
            columns, line = _host_columns(
                plane, names, base, launched, communication, framework=framework, has_devices=bool(devices)
            )
            by_plane.append(columns)
            if line is not None and training_thread is None:
                training_thread = plane.lines[line][0]
    return _joined(by_plane), training_thread


def _joined(by_plane: Sequence[_Columns]) -> dict[str, NDArray[Any]]:
    fields = _Columns.__struct_fields__
    return {field: np.concatenate([getattr(plane_columns, field) for plane_columns in by_plane]) for field in fields}


def _device_columns(plane: Plane, names: _SharedNames, base: int, communication: CommunicationNames) -> _Columns:
    """Return the columns of a GPU's plane: kernels, copies and memsets.

    Args:
        plane: the GPU's plane.
        names: returns the index of a name among the names of all planes.
        base: the time from which the columns' times count; ns, like `plane.base_ns`.
        communication: names of ops and copies by which TensorFlow communicates without NCCL.
    """
    count = len(plane.name)
    kind = np.full(count, EventKind.KERNEL, np.uint8)
    size = np.full(count, NO_SIZE, np.int64)
    direction, host_memory = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    index = np.array([names(name) for name in plane.names], np.int32)
    name = index[plane.name]
    for stat, stat_kind in ((COPY_DETAILS, EventKind.COPY), (SET_DETAILS, EventKind.MEMSET)):
        events, refs = plane.stats.get(stat, (np.empty(0, np.int64), np.empty(0, np.int64)))
        kind[events] = stat_kind
        for ref in distinct(refs).tolist():
            rows = events[refs == ref]
            details = plane.texts.get(ref, "")
            if stat_kind == EventKind.MEMSET:
                size[rows] = parse_memset_bytes(details)
                continue
            for plane_name in distinct(plane.name[rows]).tolist():
                named = rows[plane.name[rows] == plane_name]
                copy = parse_copy(plane.names[plane_name], details)
                name[named], size[named] = names(copy.name), copy.size_bytes
                direction[named], host_memory[named] = copy.direction, copy.host_memory
    # If the details of a copy or memset are missing, the event's name shows its kind.
    undetailed = kind == EventKind.KERNEL
    kind[undetailed & plane.named(lambda text: text.startswith("Memcpy"))] = EventKind.COPY
    kind[undetailed & plane.named(lambda text: text.startswith("Memset"))] = EventKind.MEMSET
    kernel = kind == EventKind.KERNEL
    role = np.where(kernel, np.uint8(Role.COMPUTE), np.uint8(Role.COPY))
    role[kernel & plane.named(kernel_operation)] = Role.COMMUNICATION
    role[(kind == EventKind.COPY) & ((direction == Direction.PEER) | communication.sends(plane))] = Role.COMMUNICATION
    hlo_op, module = _hlo_names(plane, names)
    role[plane.with_text(HLO_OP, hlo.communicates)] = Role.COMMUNICATION
    role[kernel & communication.adds(plane)] = Role.BUCKET_COPY  # adding or scaling transfers nothing
    return _Columns(
        kind=kind,
        name=name,
        start_ns=plane.start_ns + (plane.base_ns - base),
        end_ns=plane.end_ns + (plane.base_ns - base),
        thread=_threads(plane),
        device=np.full(count, plane.device, np.int16),
        correlation=_correlation(plane),
        size_bytes=size,
        role=role,
        direction=direction,
        host_memory=host_memory,
        target=np.full(count, NO_DEVICE, np.int16),
        buffer_bytes=plane.whole(BUFFER, 0),
        needs_communication=(role == Role.COMMUNICATION) | communication.needs(plane),
        feeds_devices=feeds_devices(plane),
        hlo_op=hlo_op,
        module=module,
        run=plane.whole(RUN, 0),
    )


def _hlo_names(plane: Plane, names: _SharedNames) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (HLO operation, XLA module) of each event, as int32[n] indices into `names`; `NO_NAME` if unknown."""
    operation, module = (
        np.array([names(text) if text else NO_NAME for text in texts], np.int32)[index]
        for index, texts in (plane.text(HLO_OP), plane.text(HLO_MODULE))
    )
    return operation, module


def _threads(plane: Plane) -> NDArray[np.int64]:
    """Return int64[n]: the stream or thread of each event."""
    idents = np.array([ident for ident, _ in plane.lines], np.int64)
    return idents[plane.line] if len(idents) else plane.line


def _correlation(plane: Plane) -> NDArray[np.int64]:
    correlation = plane.whole(CORRELATION, NO_CORRELATION)
    return np.where(correlation <= 0, NO_CORRELATION, correlation)  # CUPTI numbers correlations from 1


def _host_columns(
    plane: Plane,
    names: _SharedNames,
    base: int,
    launched: LaunchedWork,
    communication: CommunicationNames,
    *,
    framework: str,
    has_devices: bool,
) -> tuple[_Columns, int | None]:
    """Return (columns of a host's plane, index of its training thread's line or None).

    Args:
        plane: the host's plane.
        names, base, communication: as for `_device_columns`.
        launched: the work of all GPUs, after which the launching calls are named.
        framework: `tensorflow`, `jax` or `unknown`.
        has_devices: whether the file has planes of GPUs. Without them, `target` is the CPU's logical device of an op.
    """
    kind, step, training = host_kinds(plane, framework, has_devices=has_devices)
    count = len(kind)
    name = np.array([names(shown_name(text)) for text in plane.names], np.int32)[plane.name]
    correlation = _correlation(plane)
    role = host_roles(plane, kind, step, communication, framework, has_devices=has_devices)
    hlo_op, module = _hlo_names(plane, names)
    target = np.where(kind == EventKind.RUNTIME, plane.whole(DEVICE, NO_DEVICE), NO_DEVICE)
    if not has_devices:
        on_device = (module != NO_NAME) & (framework == "jax")
        target = np.where(on_device, plane.whole(ORDINAL, 0), placed(plane))  # a single device has no ordinal
    name_calls(plane, launched, names, LaunchColumns(kind, name, role, target, correlation))
    for mark in np.flatnonzero((step != NO_STEP) & (kind == EventKind.ANNOTATION)).tolist():
        # TensorFlow's TraceMe encodes step numbers in this form.
        name[mark] = names(f"{plane.names[plane.name[mark]]}#step_num={step[mark]}#")
    columns = _Columns(
        kind=kind,
        name=name,
        start_ns=plane.start_ns + (plane.base_ns - base),
        end_ns=plane.end_ns + (plane.base_ns - base),
        thread=_threads(plane),
        device=np.full(count, HOST, np.int16),
        correlation=np.where(kind == EventKind.RUNTIME, correlation, NO_CORRELATION),
        size_bytes=np.full(count, NO_SIZE, np.int64),
        role=role,
        direction=np.zeros(count, np.uint8),
        host_memory=np.zeros(count, np.uint8),
        target=np.clip(target, NO_DEVICE, np.iinfo(np.int16).max).astype(np.int16),  # damaged files have other values
        buffer_bytes=np.zeros(count, np.int64),
        needs_communication=communication.needs(plane),
        feeds_devices=np.zeros(count, np.bool_),
        hlo_op=hlo_op,
        module=module,
        run=plane.whole(RUN, 0),
    )
    return columns, training


def _order(columns: dict[str, NDArray[Any]], notes: list[str]) -> tuple[NDArray[np.intp], int]:
    """Return (rows with possible times, sorted by start (ties: longer first), first start in ns; 0 without rows).

    Damaged events have negative lengths or times far from the median. They are left out, and `notes` mentions them.
    """
    start, end = columns["start_ns"], columns["end_ns"]
    length = end - start
    possible = (length >= 0) & (length <= _DAY_NS)
    if possible.any():
        possible &= np.abs(start - np.median(start[possible])) <= _DAY_NS
    if not possible.all():
        notes.append(f"{int((~possible).sum())} events had impossible times (off by more than a day) and were left out")
    rows = np.flatnonzero(possible)
    order = rows[np.lexsort((-end[rows], start[rows]))]
    return order, int(start[order[0]]) if len(order) else 0


def _collectives(
    table: EventTable, buffer_bytes: NDArray[np.int64], hlo_op: NDArray[np.int32]
) -> tuple[CollectiveCall, ...]:
    """Return the collectives: kernels, or (in a process without GPUs) ops that wait for other processes or devices.

    No process groups are recorded: all replicas or devices are one group. `buffer_bytes`, `hlo_op`: as in `_Columns`.
    """
    collectives = []
    for row in np.flatnonzero((table.role == Role.COMMUNICATION) & (table.kind != EventKind.COPY)).tolist():
        name = table.name_of(row)
        operation = kernel_operation(name) or host_operation(name)
        if operation in (None, UNKNOWN) and hlo_op[row] != NO_NAME:
            operation = hlo.hlo_operation(table.names[hlo_op[row]]) or operation
        if operation:
            size = int(buffer_bytes[row])
            collectives.append(CollectiveCall(row=row, operation=operation, size_bytes=size if size > 0 else None))
    return tuple(collectives)


def step_marks_of(table: EventTable) -> tuple[StepMarks, ...]:
    """Return the step marks of a table: ranges with numbers, else the calls that begin a step.

    The names of ranges with `step_num` (`Trace` of TensorFlow, `StepTraceAnnotation` of JAX) contain the step number.
    """
    rows = np.flatnonzero(table.role == Role.STEP_MARK)
    if not len(rows):
        return ()
    number = [numbered_step(table.name_of(row)) for row in rows.tolist()]
    source = "step_num" if NO_NUMBER not in number else "range"
    return (StepMarks(source=source, row=rows, number=np.array(number, np.int64)),)


def numbered_step(name: str) -> int:
    """Return the step number in the name of a step mark; `NO_NUMBER` if it has none.

    >>> numbered_step("train#step_num=7#"), numbered_step("PjitFunction(train_step)")
    (7, -1)
    """
    match = _NUMBERED.search(name)
    return int(match[1]) if match else NO_NUMBER
