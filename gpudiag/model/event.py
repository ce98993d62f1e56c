"""Events: what one process's profiler recorded, as columns.

A trace of one training step has tens of thousands of events, so they are kept as columns (NumPy arrays) and not as
objects. Rows are in order of their start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.analysis import WorkloadKind

NO_CORRELATION = -1
NO_SIZE = -1
HOST = -1
NO_NUMBER = -1


class EventKind(IntEnum):
    """What an event is, whatever its framework or year called it."""

    OPERATOR = 0
    """A framework operator on a host thread (`cpu_op`; 2021: `Operator`)."""
    ANNOTATION = 1
    """A range that someone named, on a host thread (`user_annotation`): steps, DDP, `gpudiag.*`."""
    RUNTIME = 2
    """A CUDA runtime or driver call on a host thread: launches, copies, synchronizations."""
    KERNEL = 3
    """A kernel on a device stream, communication kernels included."""
    COPY = 4
    """A memory copy on a device stream."""
    MEMSET = 5
    """A memory set on a device stream."""
    DEVICE_ANNOTATION = 6
    """The device-side shadow of a host annotation (`gpu_user_annotation`)."""
    OVERHEAD = 7
    """The profiler's own doing ("Command Buffer Full"); neither compute nor launch."""
    DEVICE_SYNC = 8
    """A synchronization as the device saw it (`cuda_sync`)."""
    PYTHON = 9
    """A Python function call, recorded when stacks were asked for."""
    MODULE = 10
    """A module of the model at work, on a host thread; see `Trace.modules`."""


DEVICE_WORK = (EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET)


class Role(IntEnum):
    """What an event does in a training step. Its reader tells; no later stage looks at names except to show them."""

    OTHER = 0
    """Nothing that the analysis asks about."""
    COMPUTE = 1
    """A kernel that computes."""
    COMMUNICATION = 2
    """Moves gradients, parameters or activations between ranks: a kernel, or a collective on the host."""
    COPY = 3
    """A copy or memset on a device; a host call that starts one and returns, unless its host memory is pageable."""
    LAUNCH = 4
    """A host call that puts other work into a device's queue."""
    SYNCHRONIZATION = 5
    """A host call that returns when the device has done something: synchronizations, blocking copies."""
    STREAM_WAIT = 6
    """A host call that lets a stream wait for an event of another."""
    ALLOCATION = 7
    """A host call that takes device memory or pinned memory from the driver."""
    INPUT = 8
    """Waits for data: a loader gives its next batch."""
    STEP_MARK = 9
    """Spans a training step; see `Trace.step_marks`."""
    OPTIMIZER = 10
    """Spans an optimizer's update."""
    BUCKET_COPY = 11
    """Moves gradients in and out of the buckets in which they are exchanged."""
    ENQUEUE = 12
    """Gives a collective to those who carry it out."""
    OPERATOR = 13
    """A framework's operator that is none of these."""
    USER_FUNCTION = 14
    """A call of a function of the user's own program."""
    GARBAGE_COLLECTION = 15
    """The language's runtime looks for objects that nothing refers to."""
    RELEASE = 16
    """A host call that gives such memory back to the driver; it returns when the device has done all it was given."""
    MODULE_CALL = 17
    """A call of a module of the model, in recorded stacks."""


class Direction(IntEnum):
    """From where to where a copy goes."""

    NONE = 0
    """No copy, or it is not told."""
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    """Within one device."""
    PEER = 4
    """From one device to another."""
    HOST_TO_HOST = 5


class HostMemory(IntEnum):
    """What the host's side of a copy is."""

    UNKNOWN = 0
    PINNED = 1
    PAGEABLE = 2


def any_of(codes: NDArray[np.integer[Any]], *wanted: int) -> NDArray[np.bool_]:
    """bool[n]: which of n kinds, roles, directions, threads or processes are any of these few."""
    found = np.zeros(len(codes), np.bool_)
    for one in wanted:
        found |= codes == int(one)  # an IntEnum would have the whole column made int64
    return found


class EventTable(msgspec.Struct, frozen=True, kw_only=True):
    """Events as columns of equal length n, sorted by `start_ns` (ties: the longer first, so that parents precede).

    Attributes:
        kind: uint8[n], an `EventKind`.
        name: int32[n], index into `names`.
        start_ns: int64[n], on the trace's own clock, nanoseconds since `Trace.origin_ns`.
        end_ns: int64[n], never before the start.
        thread: int64[n], host thread id; for device work the stream.
        device: int16[n], device ordinal; `HOST` for host events.
        correlation: int64[n], joins a runtime call to the device work that it launched; `NO_CORRELATION` for none.
        size_bytes: int64[n], bytes of a copy or memset; `NO_SIZE` where unknown.
        role: uint8[n], a `Role`.
        direction: uint8[n], a `Direction`, of copies on a device.
        host_memory: uint8[n], a `HostMemory`, of copies on a device.
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
        """The columns by name: all fields but `names`."""
        return {field: getattr(self, field) for field in self.__struct_fields__ if field != "names"}

    def name_of(self, row: int) -> str:
        """The name of the event in this row."""
        return self.names[int(self.name[row])]

    def rows_of(self, *kinds: EventKind) -> NDArray[np.intp]:
        """Rows of the given kinds, in order of start."""
        return np.flatnonzero(any_of(self.kind, *kinds))

    def rows_on(self, threads: Iterable[int], *kinds: EventKind) -> NDArray[np.intp]:
        """Rows of the given kinds on any of these host threads, in order of start."""
        return np.flatnonzero(any_of(self.kind, *kinds) & any_of(self.thread, *threads))


class StepMarks(msgspec.Struct, frozen=True, kw_only=True):
    """Marks of training steps, of one kind.

    Attributes:
        source: what makes such marks: `gpudiag.step`, `ProfilerStep`, `step_num`.
        row: intp[k], rows in the event table, by start.
        number: int64[k], the step's number; `NO_NUMBER` where the mark carries none.
    """

    source: str
    row: NDArray[np.intp]
    number: NDArray[np.int64]


class CollectiveCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler said of one communication kernel or host-side collective, beyond its times.

    Attributes:
        row: row in the event table.
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, `all_to_all`, `send`, `recv`,
            `barrier`, or the framework's own word where none of these fits.
        group: name of the process group; "" where the trace does not say.
        group_ranks: global ranks in the group; empty where unknown.
        size_bytes: bytes given per rank in nccl-tests' sense, or None: sizes are there only when shapes were recorded.
        sequence: the group's own sequence number where recorded, else None.
        processor_share: the share of the device's multiprocessors that its kernel holds, a block each, in (0, 1]; None
            where the trace does not say.
    """

    row: int
    operation: str
    group: str = ""
    group_ranks: tuple[int, ...] = ()
    size_bytes: int | None = None
    sequence: int | None = None
    processor_share: float | None = None


def _no_number() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


class EventWaits(msgspec.Struct, frozen=True, kw_only=True):
    """What waited for which CUDA event, where the profiler tells (`cuda_sync`): columns of equal length k, by call.

    An event is recorded in a stream, and has happened when what that stream was given before has ended. To
    synchronize a stream is to wait for an event that the same call records in it.

    Attributes:
        call: int64[k], row of the host call that makes a stream, or the host itself, wait.
        device: int64[k], device ordinal of the stream that waits.
        stream: int64[k], the stream that waits; `NO_NUMBER` where the host does.
        record: int64[k], row of the host call that recorded the event; `NO_NUMBER` where that is not told.
        recorded_stream: int64[k], the stream that it was recorded in; `NO_NUMBER` where that is not told.
        event: int64[k], the event's own number, under which programs record again and again; `NO_NUMBER` for none.
    """

    call: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    device: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    stream: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    record: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    recorded_stream: NDArray[np.int64] = msgspec.field(default_factory=_no_number)
    event: NDArray[np.int64] = msgspec.field(default_factory=_no_number)

    def __len__(self) -> int:
        return len(self.call)

    def moved(self, place: NDArray[np.intp]) -> EventWaits:
        """The same in a table in which the event of each row stands in row `place[row]`; its order is unchanged."""
        told = self.record != NO_NUMBER
        record = np.where(told, place[np.where(told, self.record, 0)], NO_NUMBER) if len(self) else self.record
        return msgspec.structs.replace(self, call=place[self.call], record=record)


class Module(msgspec.Struct, frozen=True):
    """A module of the model: the class of the outermost one, the path within that one, and its own class."""

    root: str
    path: str
    kind: str


class ModuleWork(msgspec.Struct, frozen=True, kw_only=True):
    """Which module host events worked for, where the recording tells: columns of equal length k, by row.

    Attributes:
        modules: those that are named.
        row: int64[k], rows of operators and of modules' own marks, ascending; those that worked for none are not there.
        module: int32[k], index into `modules`: the innermost one at work; in backward that of the forward operator.
        backward: bool[k], in backward, what is computed of forward again included.
    """

    modules: tuple[Module, ...]
    row: NDArray[np.int64]
    module: NDArray[np.int32]
    backward: NDArray[np.bool_]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Everything read from one trace file: one process, one rank, one or more devices.

    Attributes:
        source: the file as the user named it; text for messages, never opened again.
        framework: `pytorch`, `tensorflow`, `jax`, or `unknown` where the recording does not say.
        events: the events.
        origin_ns: absolute time (Unix, ns) of the event clock's zero where known, else 0. Kept apart so that
            in-trace times stay small and exact.
        rank: global rank, or None where neither the trace nor its name says.
        world_size: number of ranks in the job, or None.
        host: host name where the trace or its file name says, else "".
        device_names: model name by device ordinal.
        collectives: details of the communication events, by row.
        step_marks: the marks of steps, those to be preferred first.
        event_waits: what waited for which CUDA event; empty where the profiler was not asked to tell.
        modules: which module host events worked for; None where that was not recorded.
        waits_in_collectives: True where the training thread waits in a function's call while other threads run its
            operators (TensorFlow's executor): what it does meanwhile is what they do, and where one of them is in a
            collective of the host, the process waits for it. False where the training thread runs operators itself.
        operators_put_in: True where its operators are those of another recording of the same job: recording them cost
            this one nothing.
        uses_devices: True where the trace says that its process works on a device, whatever was recorded of that.
        workload: `training` where a backward pass or an optimizer was recorded, `inference` where forward passes
            were and neither of these, else `unknown`.
        unread_devices: names of accelerators that the recording has activity of, but no reader for ("MTIA").
        unrecorded_graphs: how many launches of CUDA or HIP graphs have no recorded device work.
        copies: files that hold the same events, and were left out before ranks were counted through files.
        dropped_events: how many events the profiler said it lost; 0 when it said nothing.
        notes: what the reader had to repair or leave out, one line each, for the validity section.
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
    step_marks: tuple[StepMarks, ...] = ()
    event_waits: EventWaits = EventWaits()
    modules: ModuleWork | None = None
    waits_in_collectives: bool = False
    operators_put_in: bool = False
    uses_devices: bool = False
    workload: WorkloadKind = "unknown"
    unread_devices: tuple[str, ...] = ()
    unrecorded_graphs: int = 0
    copies: tuple[str, ...] = ()
    dropped_events: int = 0
    notes: tuple[str, ...] = ()


def framework_of(traces: Sequence[Trace]) -> str:
    """Return the framework of a job: that of the first trace that says one, else `unknown`."""
    return next((trace.framework for trace in traces if trace.framework != "unknown"), "unknown")


def workload_of(traces: Sequence[Trace]) -> WorkloadKind:
    """Return what the processes of a job did: a job trains if any of them does."""
    kinds = {trace.workload for trace in traces}
    if "training" in kinds:
        return "training"
    return "inference" if "inference" in kinds else "unknown"
