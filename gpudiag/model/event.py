"""Define the events that the profiler of one process recorded, as columns.

A trace of one training step has tens of thousands of events, which are therefore stored as NumPy columns instead of
objects. Rows are sorted by start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.analysis import WorkloadKind

#: Values of columns for "none" or "unknown". `HOST` is the device of an event on the host.
NO_CORRELATION = -1
NO_SIZE = -1
HOST = -1
NO_NUMBER = -1


class EventKind(IntEnum):
    """Kind of an event, independent of the framework and its version."""

    OPERATOR = 0
    """A framework operator on a host thread (`cpu_op`; 2021: `Operator`)."""
    ANNOTATION = 1
    """A named range on a host thread (`user_annotation`): steps, DDP, `gpudiag.*`."""
    RUNTIME = 2
    """A CUDA runtime or driver call on a host thread: launches, copies, synchronizations."""
    KERNEL = 3
    """A kernel on a device stream, communication kernels included."""
    COPY = 4
    """A memory copy on a device stream."""
    MEMSET = 5
    """A memory set on a device stream."""
    DEVICE_ANNOTATION = 6
    """The device-side counterpart of a host annotation (`gpu_user_annotation`)."""
    OVERHEAD = 7
    """Work of the profiler itself ("Command Buffer Full"); neither compute nor launch."""
    DEVICE_SYNC = 8
    """A synchronization recorded on the device side (`cuda_sync`)."""
    PYTHON = 9
    """A Python function call, recorded if stacks were requested."""
    MODULE = 10
    """A call of a module of the model, as gpudiag marks it on a host thread; see `Trace.modules`."""


DEVICE_WORK = (EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET)


class Role(IntEnum):
    """Role of an event in a training step. Readers assign roles; later stages use event names only to show them."""

    OTHER = 0
    """Not relevant to the analysis."""
    COMPUTE = 1
    """A kernel that computes."""
    COMMUNICATION = 2
    """Communication of gradients, parameters or activations between ranks: a kernel, or a collective on the host."""
    COPY = 3
    """A copy or memset on a device, or a host call that starts a copy (and returns at once if memory is pinned)."""
    LAUNCH = 4
    """A host call that puts other work into a device's launch queue."""
    SYNCHRONIZATION = 5
    """A host call that waits for the device: a synchronization or a blocking copy."""
    STREAM_WAIT = 6
    """A host call that makes a stream wait for an event of another stream."""
    ALLOCATION = 7
    """A host call that allocates device memory or pinned memory from the driver."""
    INPUT = 8
    """Waiting for the next batch of a data loader."""
    STEP_MARK = 9
    """A range that spans a training step; see `Trace.step_marks`."""
    OPTIMIZER = 10
    """A range that spans an optimizer's update."""
    BUCKET_COPY = 11
    """A copy of gradients into or out of the buckets that are communicated."""
    ENQUEUE = 12
    """The enqueue of a collective: a host operator that hands the collective to the communication library."""
    OPERATOR = 13
    """A framework operator with no other role."""
    USER_FUNCTION = 14
    """A call of a function of the user's program."""
    GARBAGE_COLLECTION = 15
    """A run of the language's garbage collector."""
    RELEASE = 16
    """A host call that frees device or pinned memory; it returns when the device has finished all queued work."""
    MODULE_CALL = 17
    """A call of a module of the model, in recorded stacks."""


class Direction(IntEnum):
    """Direction of a copy."""

    NONE = 0
    """No copy, or unknown."""
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    """Within one device."""
    PEER = 4
    """From one device to another."""
    HOST_TO_HOST = 5


class HostMemory(IntEnum):
    """Kind of the host memory of a copy."""

    UNKNOWN = 0
    PINNED = 1
    PAGEABLE = 2


def any_of(codes: NDArray[np.integer[Any]], *wanted: int) -> NDArray[np.bool_]:
    """Return bool[n]: whether each of n codes (kinds, roles, threads, …) is one of `wanted`."""
    is_wanted = np.zeros(len(codes), np.bool_)
    for code in wanted:
        is_wanted |= codes == int(code)  # comparing with an IntEnum would convert the whole column to int64
    return is_wanted


class EventTable(msgspec.Struct, frozen=True, kw_only=True):
    """Events as columns of equal length n, sorted by `start_ns` (ties: longer first, so that parents precede children).

    Attributes:
        kind: uint8[n], an `EventKind`.
        name: int32[n], index into `names`.
        start_ns: int64[n], nanoseconds since `Trace.origin_ns` on the trace's clock.
        end_ns: int64[n], never before the start.
        thread: int64[n], host thread id; for device work the stream.
        device: int16[n], device ordinal; `HOST` for host events.
        correlation: int64[n], joins a runtime call to the device work that it launched; `NO_CORRELATION` if none.
        size_bytes: int64[n], bytes of a copy or memset; `NO_SIZE` if unknown.
        role: uint8[n], a `Role`.
        direction: uint8[n], a `Direction`, for copies on a device.
        host_memory: uint8[n], a `HostMemory`, for copies on a device.
        names: the distinct names, by index.
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
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in self.columns().values()}
        if len(lengths) > 1:
            raise ValueError(f"event columns of different lengths: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.kind)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name: all fields but `names`."""
        return {field: getattr(self, field) for field in self.__struct_fields__ if field != "names"}

    def name_of(self, row: int) -> str:
        """Return the name of the event in this row."""
        return self.names[int(self.name[row])]

    def rows_of(self, *kinds: EventKind) -> NDArray[np.intp]:
        """Return the rows of the given kinds, in order of start."""
        return np.flatnonzero(any_of(self.kind, *kinds))

    def rows_on(self, threads: Iterable[int], *kinds: EventKind) -> NDArray[np.intp]:
        """Return the rows of the given kinds on any of these host threads, in order of start."""
        return np.flatnonzero(any_of(self.kind, *kinds) & any_of(self.thread, *threads))

    def rows_with(self, correlation: NDArray[np.int64], rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return int64[k]: the first of `rows` with each correlation; `NO_NUMBER` if there is none."""
        if not len(rows):
            return np.full(len(correlation), NO_NUMBER, np.int64)
        ordered = rows[np.argsort(self.correlation[rows], kind="stable")]
        slot = np.minimum(np.searchsorted(self.correlation[ordered], correlation), len(ordered) - 1)
        matches = (self.correlation[ordered[slot]] == correlation) & (correlation != NO_CORRELATION)
        return np.where(matches, ordered[slot], NO_NUMBER)


def in_order(columns: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> tuple[EventTable, NDArray[np.intp]]:
    """Sort events; return (their table, intp[n]: the table's row of each of the n unsorted events)."""
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    position = np.empty(len(order), np.intp)
    position[order] = np.arange(len(order))
    return EventTable(**{field: column[order] for field, column in columns.items()}, names=names), position


class StepMarks(msgspec.Struct, frozen=True, kw_only=True):
    """All marks of training steps in a trace that are of one kind.

    Attributes:
        source: kind of the marks: `gpudiag.step`, `ProfilerStep`, `step_num`, `NVTX`, or `range` (calls of JAX).
        row: intp[k], rows in the event table, sorted by start.
        number: int64[k], the step's number; `NO_NUMBER` if the mark has none.
    """

    source: str
    row: NDArray[np.intp]
    number: NDArray[np.int64]


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group of the traced process.

    Attributes:
        ranks: global ranks of its members.
        description: PyTorch's description (`default_pg`, `mesh_tp`, …); "" if unknown.
    """

    ranks: tuple[int, ...]
    description: str = ""


#: Operations between two ranks, which are matched across ranks in a different way than collectives.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded details of a communication kernel or host-side collective.

    Attributes:
        row: row in the event table.
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, `all_to_all`, `send`, `recv`,
            `send_recv`, `barrier`, or the framework's name if none of these fits.
        group: name of the process group; "" if unknown.
        group_ranks: global ranks in the group; empty if unknown.
        size_bytes: bytes per rank as nccl-tests counts them; None if unknown, because shapes were not recorded.
        sequence: number of the call among the group's calls; None if unknown.
        peer: global rank that receives a `send` or sends to a `recv`; None if unknown, and for collectives.
        processor_share: share of the device's multiprocessors that the kernel occupies with one block each, in (0, 1];
            None if unknown.
    """

    row: int
    operation: str
    group: str = ""
    group_ranks: tuple[int, ...] = ()
    size_bytes: int | None = None
    sequence: int | None = None
    peer: int | None = None
    processor_share: float | None = None


def _no_number() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


class EventWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Waits for CUDA events, if the profiler recorded them (`cuda_sync`): columns of equal length k, sorted by call.

    A CUDA event is recorded in a stream, and occurs when all earlier work of that stream has ended. A stream's
    synchronization is represented as a wait for an event that the same call records in the stream.

    Attributes:
        call: int64[k], row of the host call that makes a stream or the host wait.
        device: int64[k], device ordinal of the waiting stream.
        stream: int64[k], the waiting stream; `NO_NUMBER` if the host waits.
        record: int64[k], row of the host call that recorded the event; `NO_NUMBER` if unknown.
        recorded_stream: int64[k], the stream in which the event was recorded; `NO_NUMBER` if unknown.
        event: int64[k], number of the event, which a program may record repeatedly; `NO_NUMBER` if none.
    """

    call: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    device: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    stream: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    record: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    recorded_stream: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    event: NDArray[np.int64] = msgspec.field(default_factory=_no_number)

    def __len__(self) -> int:
        return len(self.call)

    def moved(self, position: NDArray[np.intp]) -> EventWaits:
        """Return the waits, in unchanged order, for an event table in which each row moved to `position[row]`."""
        known = self.record != NO_NUMBER
        record = np.where(known, position[np.where(known, self.record, 0)], NO_NUMBER) if len(self) else self.record
        return msgspec.structs.replace(self, call=position[self.call], record=record)


class Module(msgspec.Struct, frozen=True):
    """A module of the model: class of the outermost module (`root`), path from there, and own class (`kind`)."""

    root: str
    path: str
    kind: str


class ModuleWork(msgspec.Struct, frozen=True, kw_only=True):
    """The module for which each host event worked, if recorded: columns of equal length k, sorted by row.

    Attributes:
        modules: the distinct modules.
        row: int64[k], rows of operators and module marks, ascending; events outside of all modules are left out.
        module: int32[k], index into `modules` of the innermost module; in backward, the module of the forward operator.
        backward: bool[k], whether the event is in backward (including recomputation of forward).
    """

    modules: tuple[Module, ...]
    row: NDArray[np.int64]
    module: NDArray[np.int32]
    backward: NDArray[np.bool_]


class OperatorWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work of operators according to their recorded shapes: columns of equal length k; `NO_NUMBER` if unknown.

    Attributes:
        row: int64[k], rows in the event table, ascending.
        flops: int64[k], floating-point operations.
        moved_bytes: int64[k], bytes of the inputs and outputs.
        precision: int8[k], index of the inputs' type in `compute_rates.PRECISIONS`.
    """

    row: NDArray[np.int64]
    flops: NDArray[np.int64]
    moved_bytes: NDArray[np.int64]
    precision: NDArray[np.int8]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one trace file: one process, one rank, one or more devices.

    Attributes:
        source: the file as the user named it, only for messages.
        framework: `pytorch`, `tensorflow`, `jax`, or `unknown`.
        events: the events.
        origin_ns: Unix time, in ns, of the zero of the events' clock; 0 if unknown. Event times count from this zero,
            so that they stay small and exact.
        rank: global rank, or None if neither the trace nor its file name states it.
        world_size: number of ranks in the job, or None.
        host: host name if the trace or its file name states it, else "".
        device_names: device ordinal → model name.
        collectives: details of the communication events, sorted by row.
        groups: name → process group, if the trace lists groups.
        step_marks: marks of steps, the preferred kind first.
        event_waits: waits for CUDA events; empty if the profiler did not record them.
        modules: the module for which each host event worked; None if not recorded.
        operator_work: work of the operators whose shapes were recorded; None if no shapes were recorded.
        waits_in_collectives: False if the training thread runs operators itself. True if it waits in a call while other
            threads run operators (TensorFlow's executor), so that host collectives block the process.
        operators_merged: True if the operators come from another trace of the same job. Then recording operators did
            not slow the steps of this trace.
        uses_devices: whether the trace states that its process uses a device, even if no device work was recorded.
        workload: `training` if a backward pass or an optimizer was recorded, `inference` if only forward passes were
            recorded, else `unknown`.
        unread_devices: names of accelerators with recorded activity that no reader supports ("MTIA").
        unrecorded_graphs: number of launches of CUDA or HIP graphs without recorded device work.
        copies: names of files that were left out before ranks were assigned, because their events are the same.
        dropped_events: number of events that the profiler reported as lost.
        notes: repairs and omissions by the reader, one line each, for the validity section of reports.
    """

    source: str
    framework: str
    events: EventTable
    origin_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    device_names: dict[int, str] = msgspec.field(default_factory=dict)
    collectives: tuple[CollectiveCall, ...] = ()
    groups: dict[str, ProcessGroup] = msgspec.field(default_factory=dict)
    step_marks: tuple[StepMarks, ...] = ()
    event_waits: EventWaits = EventWaits()
    modules: ModuleWork | None = None
    operator_work: OperatorWork | None = None
    waits_in_collectives: bool = False
    operators_merged: bool = False
    uses_devices: bool = False
    workload: WorkloadKind = "unknown"
    unread_devices: tuple[str, ...] = ()
    unrecorded_graphs: int = 0
    copies: tuple[str, ...] = ()
    dropped_events: int = 0
    notes: tuple[str, ...] = ()


def framework_of(traces: Sequence[Trace]) -> str:
    """Return the framework of a job: that of the first trace that states one, else `unknown`."""
    return next((trace.framework for trace in traces if trace.framework != "unknown"), "unknown")


def workload_of(traces: Sequence[Trace]) -> WorkloadKind:
    """Return the workload of a job. A job trains if any of its processes trains."""
    kinds = {trace.workload for trace in traces}
    if "training" in kinds:
        return "training"
    return "inference" if "inference" in kinds else "unknown"
