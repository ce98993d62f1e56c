"""Simulate small training jobs, the examples of rules, and return their traces.

    Job(ranks=4, step=(kernels(20), all_reduce(2), update(1)), extra={2: (fetch(30),)})

is a job of four ranks, where rank 2 waits 30 ms for its loader in each step. `Job.traces()` executes the job as a
framework would. The host runs ahead of the device. A collective starts on each rank when its gradients are computed,
and ends on all ranks at once. A synchronization blocks the host until the device is idle. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from gpudiag.model.event import (
    HOST,
    NO_CORRELATION,
    NO_NUMBER,
    NO_SIZE,
    CollectiveCall,
    Direction,
    EventKind,
    EventTable,
    HostMemory,
    ProcessGroup,
    Role,
    StepMarks,
    Trace,
)
from gpudiag.units import NS_PER_MS, NS_PER_US

_HOST_THREAD = 1
_COMPUTE_STREAM, _COMMUNICATION_STREAM, _SEND_STREAM, _RECEIVE_STREAM = 7, 20, 21, 22
_COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
_MESSAGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_STREAM_OF = {"all_reduce": _COMMUNICATION_STREAM, "send": _SEND_STREAM, "recv": _RECEIVE_STREAM}
#: Least time from the end of a launch to the kernel's start, and between two operations of a stream.
_LATENCY_NS, _GAP_NS = 2_400, 1_200
_ORIGIN_NS = 10**18


class Piece(msgspec.Struct, frozen=True):
    """An operation of a rank in a step; created by the functions below.

    Attributes:
        ns, launch_ns: duration in ns of each of `count` kernels or calls, and of each launch.
        pinned, released: whether a copy's host memory is pinned; whether memory is released instead of allocated.
        name: name of the kernels or operator; for copies, the operator that copies to the host.
        operator: name of the operator that launches the kernels; "" for a default.
        in_update: whether the kernels belong to the optimizer's update.
        peer: the other rank of a message.
    """

    what: str
    ns: int = 0
    count: int = 1
    launch_ns: int = 0
    size_bytes: int = NO_SIZE
    pinned: bool = True
    released: bool = False
    name: str = ""
    operator: str = ""
    in_update: bool = False
    peer: int = NO_NUMBER


def _ns(ms: float) -> int:
    return round(ms * NS_PER_MS)


def fetch(ms: float) -> Piece:
    """Wait for the DataLoader."""
    return Piece("fetch", _ns(ms))


def silence(ms: float) -> Piece:
    """Spend host time that no event records."""
    return Piece("silence", _ns(ms))


def python(ms: float, name: str = "aten::to") -> Piece:
    """Run an operator `name` that launches no kernel."""
    return Piece("python", _ns(ms), name=name)


def collection(ms: float) -> Piece:
    """Run Python's garbage collection in a marked range."""
    return Piece("collection", _ns(ms))


def kernels(ms: float, *, count: int = 20, launch_us: float = 8) -> Piece:
    """Launch `count` kernels that take `ms` in total; each launch takes `launch_us`."""
    return Piece("kernels", _ns(ms / count), count, int(launch_us * NS_PER_US))


def named(
    ms: float, name: str, *, operator: str = "aten::add", count: int = 20, launch_us: float = 8, in_update: bool = False
) -> Piece:
    """Launch `count` kernels `name` that take `ms` in total, from `operator`; in the update if `in_update`."""
    launch_ns = int(launch_us * NS_PER_US)
    return Piece("kernels", _ns(ms / count), count, launch_ns, name=name, operator=operator, in_update=in_update)


def host_copy(ms: float, *, megabytes: float, pinned: bool = True) -> Piece:
    """Copy to the device on the compute stream; a copy from pageable memory blocks the host until it ends."""
    return Piece("copy", _ns(ms), size_bytes=int(megabytes * 1e6), pinned=pinned)


def read_back(ms: float, *, megabytes: float) -> Piece:
    """Copy to pageable memory as `tensor.cpu()` does; the host is blocked until the copy ends."""
    return Piece("copy", _ns(ms), size_bytes=int(megabytes * 1e6), pinned=False, name="aten::copy_")


def item() -> Piece:
    """Wait until the device is idle, as `tensor.item()` does."""
    return Piece("item")


def memory(ms: float, *, count: int, released: bool = False) -> Piece:
    """Allocate (or release) device memory by `count` calls of `ms`. A release first waits until the device is idle."""
    return Piece("memory", _ns(ms), count, released=released)


def all_reduce(ms: float, *, megabytes: float = 100) -> Piece:
    """Run a collective of a stage's ranks, overlapped with compute; it ends `ms` after the last rank's arrival."""
    return Piece("all_reduce", _ns(ms), size_bytes=int(megabytes * 1e6))


def send(to: int, ms: float = 0.2, *, megabytes: float = 8) -> Piece:
    """Send the result of the queued kernels to another rank; the transfer takes `ms`."""
    return Piece("send", _ns(ms), size_bytes=int(megabytes * 1e6), peer=to)


def receive(source: int, *, megabytes: float = 8) -> Piece:
    """Receive from another rank; later kernels wait for the end of its transfer."""
    return Piece("recv", size_bytes=int(megabytes * 1e6), peer=source)


def update(ms: float) -> Piece:
    """Launch the optimizer's kernel, which waits for the collectives."""
    return Piece("update", _ns(ms))


#: A step of DDP: while gradients of the last layers are reduced, gradients of the first layers are computed.
DDP = (kernels(10), all_reduce(2), kernels(10), all_reduce(1), update(1))


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The operations of each rank in each step.

    In each step a rank executes `once`, `rotating` and `extra` if they apply, and then `sometimes`, `own` or `step`.

    Attributes:
        ranks: the number of ranks.
        stages: pipeline stages; consecutive ranks are of one stage, and a collective joins the ranks of one stage.
        step: the operations of a step.
        own: rank → operations that replace `step`; they must contain the same collectives.
        extra: rank → operations before the step.
        rotating: operations before the step on one rank only; the rank changes with each step.
        once: step number → operations before the step on all ranks.
        sometimes: (rank, step number) → operations that replace `step` or `own` in that step.
        recorded: the ranks with a trace; empty for all ranks.
        steps: the number of recorded steps; the first and the last are not analysed.
        dropped_events: the number of lost events that rank 0's profiler reports.
        scatter: relative standard deviation of kernel times between steps of a rank.
        seed: seed of this scatter; the scatter of a step does not depend on its operations.
        recording_ns: profiler overhead per recorded host event.
        device_name: model of the devices.
        host_pace: rank → factor by which calls and operators on its host, and their recording, take longer.
    """

    ranks: int
    stages: int = 1
    step: tuple[Piece, ...] = ()
    own: Mapping[int, tuple[Piece, ...]] = msgspec.field(default_factory=dict)
    extra: Mapping[int, tuple[Piece, ...]] = msgspec.field(default_factory=dict)
    rotating: tuple[Piece, ...] = ()
    once: Mapping[int, tuple[Piece, ...]] = msgspec.field(default_factory=dict)
    sometimes: Mapping[tuple[int, int], tuple[Piece, ...]] = msgspec.field(default_factory=dict)
    recorded: tuple[int, ...] = ()
    steps: int = 7
    dropped_events: int = 0
    scatter: float = 0.0
    seed: int = 0
    recording_ns: int = 0
    host_pace: Mapping[int, float] = msgspec.field(default_factory=dict)
    device_name: str = "example"

    def traces(self) -> tuple[Trace, ...]:
        """Return the traces of the recorded ranks, in the format of the trace readers."""
        players = self._play(recorded=True)
        return tuple(players[rank].trace() for rank in self.recorded or range(self.ranks))

    def step_times_ms(self) -> tuple[float, ...]:
        """Return the unprofiled ms of each analysed step on the slowest rank, between two ends of device work."""
        ends = np.array([player.finished for player in self._play(recorded=False)], np.float64)
        times = np.diff(ends[:, : self.steps - 1], axis=1) / NS_PER_MS
        slowest = times[int(np.argmax(times.sum(axis=1)))]
        return tuple(slowest.tolist())

    def _play(self, *, recorded: bool) -> list[_Rank]:
        """Execute all ranks. Each rank runs to its next communication, and continues when the communication ends."""
        players = [_Rank(rank, self, recorded=recorded) for rank in range(self.ranks)]
        scripts = [self._script(rank, player) for rank, player in enumerate(players)]
        # The communication that each rank has reached, or None if the rank has ended.
        arrived = [next(script, None) for script in scripts]
        sent: dict[tuple[int, int], list[int]] = {}
        while any(arrival is not None for arrival in arrived):
            leaving = self._leaving(arrived, sent)
            assert leaving, "the ranks wait for each other"
            for rank, end in leaving.items():
                arrival = arrived[rank]
                assert arrival is not None
                players[rank].leave(*arrival, end)
                arrived[rank] = next(scripts[rank], None)
        return players

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank * self.stages // self.ranks

    def peers_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the pipeline stage of `rank`."""
        return tuple(other for other in range(self.ranks) if self.stage_of(other) == self.stage_of(rank))

    def _leaving(
        self, arrived: list[tuple[int, Piece] | None], sent: dict[tuple[int, int], list[int]]
    ) -> dict[int, int]:
        """Return rank → end in ns of its communication, for each communication that is complete now.

        `sent` maps (sender, receiver) to the ends of the messages that are not received yet, and is updated.
        """
        leaving: dict[int, int] = {}
        for rank, arrival in enumerate(arrived):
            if arrival is None:
                continue
            start, piece = arrival
            if piece.what == "send":
                sent.setdefault((rank, piece.peer), []).append(start + piece.ns)
                leaving[rank] = start + piece.ns
            elif piece.what == "recv":
                waiting = sent.get((piece.peer, rank))
                if waiting:
                    leaving[rank] = max(start, waiting.pop(0))
            else:
                meeting = [arrived[peer] for peer in self.peers_of(rank)]
                # A collective ends on all ranks at once. Ranks that have ended (None) do not take part.
                if all(other is None or other[1].what == "all_reduce" for other in meeting):
                    leaving[rank] = max(other[0] + other[1].ns for other in meeting if other is not None)
        return leaving

    def _script(self, rank: int, player: _Rank) -> Iterator[tuple[int, Piece]]:
        """Execute a rank's steps; yield (start in ns, operation) of each communication."""
        paces = 1 + self.scatter * np.random.default_rng((self.seed, rank)).standard_normal(self.steps)
        for number, pace in enumerate(paces.tolist()):
            player.mark(number)
            player.pace = max(pace, 0.0)
            usual = self.own.get(rank, self.step)
            pieces = (*self.extra.get(rank, ()), *(self.sometimes.get((rank, number)) or usual))
            if number % self.ranks == rank:
                pieces = (*self.rotating, *pieces)
            pieces = (*self.once.get(number, ()), *pieces)
            for piece in pieces:
                if piece.what in _STREAM_OF:
                    yield player.arrive(piece), piece
                else:
                    player.do(piece)
        player.close()


class _Row(msgspec.Struct, frozen=True):
    kind: EventKind
    role: Role
    name: str
    start: int
    end: int
    thread: int = _HOST_THREAD
    device: int = HOST
    correlation: int = NO_CORRELATION
    size_bytes: int = NO_SIZE
    host_memory: HostMemory = HostMemory.UNKNOWN
    direction: Direction = Direction.NONE
    step: int = NO_NUMBER


class _Rank:
    """A rank's host, device and recorded events.

    If `recorded` is false, the traces are not needed and kernels are not recorded, which is faster.
    Calls without a stated duration take a few µs, as on a real host.

    Attributes:
        now: the host's clock in ns.
        free: stream → end in ns of its last operation.
        calls: correlation of a communication kernel → (stream, operation); `launched` is the last correlation.
        marked: (number, start in ns) of the current step; None outside of steps.
        pace, host_pace: factors of the durations of kernels in the current step, and of host calls.
        finished: end in ns of the device work of each step.
    """

    def __init__(self, rank: int, of: Job, *, recorded: bool) -> None:
        self.rank, self.job, self.recorded = rank, of, recorded
        self.now = 1_000
        self.free = {_COMPUTE_STREAM: 0, _COMMUNICATION_STREAM: 0, _SEND_STREAM: 0, _RECEIVE_STREAM: 0}
        self.calls: dict[int, tuple[int, Piece]] = {}
        self.rows: list[_Row] = []
        self.marked: tuple[int, int] | None = None
        self.launched = 0
        self.pace, self.host_pace = 1.0, of.host_pace.get(rank, 1.0)
        self.finished: list[int] = []

    def mark(self, number: int) -> None:
        self.close()
        self.marked = (number, self.now)

    def close(self) -> None:
        if self.marked is not None:
            number, start = self.marked
            self.finished.append(max(self.free.values()))
            name = f"ProfilerStep#{number}"
            self.rows.append(_Row(EventKind.ANNOTATION, Role.STEP_MARK, name, start, self.now, step=number))
        self.marked = None

    def do(self, piece: Piece) -> None:
        """Execute an operation that is no communication."""
        if piece.what == "fetch":
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            self._take(EventKind.ANNOTATION, Role.INPUT, name, piece.ns)
        elif piece.what == "silence":
            self.now += piece.ns
        elif piece.what == "python":
            self._take(EventKind.OPERATOR, Role.OPERATOR, piece.name, self._on_host(piece.ns))
        elif piece.what == "collection":
            self._take(EventKind.ANNOTATION, Role.GARBAGE_COLLECTION, "gpudiag.gc", self._on_host(piece.ns))
        elif piece.what == "item":
            self._item()
        elif piece.what == "memory":
            self._memory(piece)
        elif piece.what == "copy":
            self._copy(piece)
        elif piece.what == "update":
            self._wait_event()
            after = self.free[_COMMUNICATION_STREAM]
            self._launch("multi_tensor_apply_kernel", piece.ns, after=after)
        elif self.recorded:
            self._launch_all(piece)
        else:
            self._launch_unseen(piece)

    def arrive(self, piece: Piece) -> int:
        """Launch communication after the queued compute, and return its start on this rank in ns.

        A receive does not wait for compute.
        """
        if piece.what != "recv":
            self._wait_event()
        self.launched += 1
        self._call(Role.LAUNCH, "cudaLaunchKernelExC", 8_000, self.launched)
        after = [_RECEIVE_STREAM] if piece.what == "recv" else [_COMPUTE_STREAM, _STREAM_OF[piece.what]]
        return max(self.now + _LATENCY_NS, *(self.free[stream] + _GAP_NS for stream in after))

    def leave(self, start: int, piece: Piece, end: int) -> None:
        """Record the kernel of a communication that has ended. Since its launch this rank has launched nothing."""
        stream = _STREAM_OF[piece.what]
        name = _COLLECTIVE if piece.what == "all_reduce" else _MESSAGE
        self.calls[self.launched] = (stream, piece)
        where = (stream, 0, self.launched, piece.size_bytes)
        self.rows.append(_Row(EventKind.KERNEL, Role.COMMUNICATION, name, start, end, *where))
        self.free[stream] = end
        if piece.what == "recv":
            self._wait_event()
            self.free[_COMPUTE_STREAM] = max(self.free[_COMPUTE_STREAM], end)

    def trace(self) -> Trace:
        """Return the recorded events as a trace reader would return them."""
        # An enclosing event precedes the events that start with it.
        rows = sorted(self.rows, key=lambda row: (row.start, -row.end))
        names = {name: index for index, name in enumerate(dict.fromkeys(row.name for row in rows))}
        table = EventTable(
            kind=np.array([row.kind for row in rows], np.uint8),
            name=np.array([names[row.name] for row in rows], np.int32),
            start_ns=np.array([row.start for row in rows], np.int64),
            end_ns=np.array([row.end for row in rows], np.int64),
            thread=np.array([row.thread for row in rows], np.int64),
            device=np.array([row.device for row in rows], np.int16),
            correlation=np.array([row.correlation for row in rows], np.int64),
            size_bytes=np.array([row.size_bytes if row.role == Role.COPY else NO_SIZE for row in rows], np.int64),
            role=np.array([row.role for row in rows], np.uint8),
            direction=np.array([row.direction for row in rows], np.uint8),
            host_memory=np.array([row.host_memory for row in rows], np.uint8),
            names=tuple(names),
        )
        marked = [index for index, row in enumerate(rows) if row.role == Role.STEP_MARK]
        return Trace(
            source=f"rank{self.rank}.json",
            framework="pytorch",
            events=table,
            origin_ns=_ORIGIN_NS,
            rank=self.rank,
            world_size=self.job.ranks,
            host="example",
            device_names={0: self.job.device_name},
            collectives=tuple(
                self._collective(index, row) for index, row in enumerate(rows) if row.role == Role.COMMUNICATION
            ),
            groups=self._groups(),
            step_marks=(
                StepMarks(
                    source="ProfilerStep",
                    row=np.array(marked, np.intp),
                    number=np.array([rows[index].step for index in marked], np.int64),
                ),
            ),
            dropped_events=self.job.dropped_events if self.rank == 0 else 0,
        )

    def _collective(self, index: int, row: _Row) -> CollectiveCall:
        """Return the collective or message of the kernel at position `index` of the event table."""
        _, piece = self.calls[row.correlation]
        group = "default_pg" if self.job.stages == 1 else "dp" if piece.what == "all_reduce" else "pp"
        return CollectiveCall(
            row=index,
            operation=piece.what,
            group=group,
            group_ranks=self._groups()[group].ranks,
            size_bytes=row.size_bytes,
            peer=None if piece.peer == NO_NUMBER else piece.peer,
        )

    def _groups(self) -> dict[str, ProcessGroup]:
        """Return the rank's process groups: one of all ranks, or one of its stage and one of its pipeline."""
        everyone = tuple(range(self.job.ranks))
        if self.job.stages == 1:
            return {"default_pg": ProcessGroup(everyone, "default_pg")}
        peers = self.job.peers_of(self.rank)
        replica = peers.index(self.rank)
        stages = tuple(rank for rank in everyone if self.job.peers_of(rank).index(rank) == replica)
        return {"pp": ProcessGroup(stages, "mesh_pp"), "dp": ProcessGroup(peers, "mesh_dp")}

    def _on_host(self, ns: int) -> int:
        return round(ns * self.host_pace)

    def _take(self, kind: EventKind, role: Role, name: str, ns: int) -> None:
        """Record a host event that launches nothing and takes `ns`, plus the overhead of recording it."""
        end = self.now + ns + self._on_host(self.job.recording_ns)
        self.rows.append(_Row(kind, role, name, self.now, end))
        self.now = end

    def _call(self, role: Role, name: str, ns: int, correlation: int = NO_CORRELATION, within: str = "") -> None:
        """Record an operator (`within`, or `aten::add`), and a runtime call in the operator's last three quarters.

        The operator takes `ns`, plus the overhead of recording it and its call.
        """
        ns = self._on_host(ns + 2 * self.job.recording_ns)
        self.rows.append(_Row(EventKind.OPERATOR, Role.OPERATOR, within or "aten::add", self.now, self.now + ns))
        begin, end = self.now + ns // 4, self.now + ns
        self.rows.append(_Row(EventKind.RUNTIME, role, name, begin, end, correlation=correlation))
        self.now += ns

    def _wait_event(self) -> None:
        self._call(Role.STREAM_WAIT, "cudaStreamWaitEvent", 1_000)

    def _launch(self, name: str, ns: int, *, launch_ns: int = 8_000, after: int = 0, within: str = "") -> None:
        """Launch a kernel on the compute stream that starts no sooner than `after`."""
        self.launched += 1
        self._call(Role.LAUNCH, "cudaLaunchKernel", launch_ns, self.launched, within)
        start, end = self._queued(round(ns * self.pace), after)
        row = _Row(EventKind.KERNEL, Role.COMPUTE, name, start, end, _COMPUTE_STREAM, 0, self.launched)
        self.rows.append(row)

    def _launch_all(self, piece: Piece) -> None:
        """Launch and record each of an operation's kernels."""
        begin = self.now
        for index in range(piece.count):
            name = piece.name or f"gemm_{piece.ns}_{index}"
            self._launch(name, piece.ns, launch_ns=piece.launch_ns, within=piece.operator)
        if piece.in_update:
            self.rows.append(_Row(EventKind.ANNOTATION, Role.OPTIMIZER, "Optimizer.step#Adam.step", begin, self.now))

    def _launch_unseen(self, piece: Piece) -> None:
        """Advance the clocks by an operation's kernels without recording events, which is ten times as fast."""
        host_ns, ns = self._on_host(piece.launch_ns + 2 * self.job.recording_ns), round(piece.ns * self.pace)
        free = self.free[_COMPUTE_STREAM]
        for _ in range(piece.count):
            self.now += host_ns
            free = max(self.now + _LATENCY_NS, free + _GAP_NS) + ns
        self.free[_COMPUTE_STREAM] = free

    def _queued(self, ns: int, after: int = 0) -> tuple[int, int]:
        """Return (start, end) in ns of an operation launched now on the compute stream, but not before `after`."""
        start = max(self.now + _LATENCY_NS, self.free[_COMPUTE_STREAM] + _GAP_NS, after + _GAP_NS if after else 0)
        self.free[_COMPUTE_STREAM] = start + ns
        return start, start + ns

    def _memory(self, piece: Piece) -> None:
        """Record the calls that allocate or release memory; a release first waits until the device is idle."""
        for _ in range(piece.count):
            role, name = (Role.RELEASE, "cudaFree") if piece.released else (Role.ALLOCATION, "cudaMalloc")
            end = piece.ns + (max(*self.free.values(), self.now) if piece.released else self.now)
            self.rows.append(_Row(EventKind.RUNTIME, role, name, self.now, end))
            self.now = end

    def _copy(self, piece: Piece) -> None:
        """Copy to the device, or back if `piece` names an operator; a pageable copy blocks the host until its end."""
        memory = HostMemory.PINNED if piece.pinned else HostMemory.PAGEABLE
        back = bool(piece.name)
        named = memory.name.capitalize()
        name = f"Memcpy DtoH (Device -> {named})" if back else f"Memcpy HtoD ({named} -> Device)"
        direction = Direction.DEVICE_TO_HOST if back else Direction.HOST_TO_DEVICE
        begin = len(self.rows)
        self.launched += 1
        self._call(Role.COPY, "cudaMemcpyAsync", 8_000, self.launched, piece.name)
        start, end = self._queued(piece.ns)
        where = (_COMPUTE_STREAM, 0, self.launched)
        self.rows.append(_Row(EventKind.COPY, Role.COPY, name, start, end, *where, piece.size_bytes, memory, direction))
        if not piece.pinned:
            # The call of a pageable copy returns when the copy is done.
            self.now = end + 3_000
            self.rows[begin : begin + 2] = [
                msgspec.structs.replace(row, end=self.now) for row in self.rows[begin : begin + 2]
            ]
            # PyTorch's `.to(device)` then synchronizes, unless it is called with `non_blocking=True`.
            self._call(Role.SYNCHRONIZATION, "cudaStreamSynchronize", 9_000, within=piece.name)

    def _item(self) -> None:
        """Block the host until the device is idle."""
        recording_ns = self._on_host(2 * self.job.recording_ns)
        begin, returned = self.now, max(*self.free.values(), self.now) + 5_000 + recording_ns
        self.rows.append(_Row(EventKind.OPERATOR, Role.OPERATOR, "aten::item", begin, returned + 1_000))
        self.rows.append(
            _Row(EventKind.RUNTIME, Role.SYNCHRONIZATION, "cudaStreamSynchronize", begin + 1_000, returned)
        )
        self.now = returned + 1_000
