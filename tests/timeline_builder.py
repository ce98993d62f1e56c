"""Build the traces of a whole case in a few lines.

    trace = (
        TraceBuilder(rank=0, world_size=2)
        .step().compute(0, 5).collective(5, 9)
        .step(10).compute(0, 5).collective(5, 9)
        .build()
    )

Times are integers in `unit_ns` (default: microseconds) after the start of the current step. Before the first step,
times count from the trace's zero. A step lasts until the next step begins.

Device work is *queued ahead* by default: its launch call is at the start of its step and has zero length, so that the
host causes no gaps. `launch=(3, 4)` sets the time of the call, `launch=3` makes a call of zero length, and with
`launch=None` there is no call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from msgspec.structs import replace

from gpudiag.model.event import HOST, NO_CORRELATION, NO_SIZE, CollectiveCall, EventKind, EventTable, Trace
from gpudiag.trace.readers.kineto.roles import roles_of, step_marks_of
from gpudiag.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Callable

Launch = tuple[int, int] | int | None

TRAINING = 1
BACKWARD = 2
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True, slots=True)
class _Row:
    kind: EventKind
    name: str
    start: int
    end: int
    thread: int
    device: int = HOST
    correlation: int = NO_CORRELATION
    size_bytes: int = NO_SIZE
    call: CollectiveCall | None = None


class TraceBuilder:
    """Builder of the trace of one process. Every method but `build` returns the builder itself.

    Args:
        rank, world_size, host: fields of the trace; None if the trace does not name them.
        unit_ns: unit of all times that methods take, in ns.
        origin_ns: Unix time of the trace's zero, in ns.
    """

    def __init__(
        self,
        rank: int | None = 0,
        *,
        world_size: int | None = None,
        unit_ns: int = NS_PER_US,
        origin_ns: int = 10**18,
        host: str = "node0",
    ) -> None:
        self._trace_fields = {"rank": rank, "world_size": world_size, "origin_ns": origin_ns, "host": host}
        self._unit = unit_ns
        self._rows: list[_Row] = []
        self._marks: list[tuple[int, str]] = []
        self._zero = 0
        self._thread = TRAINING
        self._device = 0
        self._correlation = 0
        self._clock = 0

    # Position

    def step(self, at: int | None = None, *, number: int | None = None, mark: str | None = "ProfilerStep#{}") -> Self:
        """Begin a step at time `at` after the trace's zero (default: the end of the last event).

        With `mark=None` there is no step mark, and only the zero of later times moves.
        """
        if at is None:
            at = max((-(-row.end // self._unit) for row in self._rows), default=self._zero)
        self._zero = at
        if mark is not None:
            self._marks.append((at, mark.format(len(self._marks) if number is None else number)))
        return self

    def steps(self, count: int, period: int, body: Callable[[Self], object], *, first: int = 0) -> Self:
        """Add `count` equal steps of length `period`, which `body` fills, from the time `first` on."""
        for index in range(count):
            body(self.step(first + index * period))
        return self

    def on(self, device: int) -> Self:
        """Put the following device work on `device`."""
        self._device = device
        return self

    def by(self, thread: int) -> Self:
        """Put the following host work and launches on `thread`."""
        self._thread = thread
        return self

    # Host

    def operator(self, start: int, end: int, name: str = "aten::add") -> Self:
        return self._add(EventKind.OPERATOR, name, start, end)

    def annotation(self, start: int, end: int, name: str) -> Self:
        return self._add(EventKind.ANNOTATION, name, start, end)

    def python(self, start: int, end: int, name: str) -> Self:
        """Add a Python function or a module call, which a profiler records if it records stacks."""
        return self._add(EventKind.PYTHON, name, start, end)

    def loader(self, start: int, end: int, name: str = LOADER) -> Self:
        """Make the training thread wait for its next batch."""
        return self.annotation(start, end, name)

    def optimizer(self, start: int, end: int, name: str = "Optimizer.step#SGD.step") -> Self:
        return self.annotation(start, end, name)

    def runtime(self, start: int, end: int, name: str = "cudaLaunchKernel", correlation: int = NO_CORRELATION) -> Self:
        return self._add(EventKind.RUNTIME, name, start, end, correlation=correlation)

    def sync(self, start: int, end: int, name: str = "cudaDeviceSynchronize") -> Self:
        return self.runtime(start, end, name)

    def overhead(self, start: int, end: int, name: str = "Command Buffer Full") -> Self:
        """Add overhead of the profiler, which belongs to the process rather than to a thread."""
        return self._add(EventKind.OVERHEAD, name, start, end, thread=0)

    def gloo(
        self,
        start: int,
        end: int,
        operation: str = "all_reduce",
        *,
        thread: int = 90,
        group: str = "0",
        ranks: tuple[int, ...] = (),
        size_bytes: int | None = None,
        sequence: int | None = None,
    ) -> Self:
        """Add a collective of gloo on a worker thread of the host."""
        call = CollectiveCall(
            row=0, operation=operation, group=group, group_ranks=ranks, size_bytes=size_bytes, sequence=sequence
        )
        return self._add(EventKind.ANNOTATION, f"gloo:{operation}", start, end, thread=thread, call=call)

    # Device

    def compute(self, start: int, end: int, name: str = "gemm", *, stream: int = 7, launch: Launch = 0) -> Self:
        return self._device_work(EventKind.KERNEL, name, start, end, stream, launch=launch, launcher="cudaLaunchKernel")

    def copy(
        self,
        start: int,
        end: int,
        name: str = "Memcpy HtoD (Pinned -> Device)",
        *,
        stream: int = 7,
        launch: Launch = 0,
        size_bytes: int = NO_SIZE,
        call: str = "cudaMemcpyAsync",
    ) -> Self:
        """Add a copy between host and device; `call` is the runtime call that launches it."""
        return self._device_work(
            EventKind.COPY, name, start, end, stream, launch=launch, launcher=call, size_bytes=size_bytes
        )

    def memset(self, start: int, end: int, *, stream: int = 7, launch: Launch = 0) -> Self:
        return self._device_work(
            EventKind.MEMSET, "Memset (Device)", start, end, stream, launch=launch, launcher="cudaMemsetAsync"
        )

    def collective(
        self,
        start: int,
        end: int,
        operation: str = "all_reduce",
        *,
        stream: int = 20,
        launch: Launch = 0,
        group: str = "0",
        ranks: tuple[int, ...] = (),
        size_bytes: int | None = None,
        sequence: int | None = None,
    ) -> Self:
        """Add an NCCL kernel, with the operation, group, ranks, size and sequence number of its collective."""
        call = CollectiveCall(
            row=0, operation=operation, group=group, group_ranks=ranks, size_bytes=size_bytes, sequence=sequence
        )
        name = f"ncclDevKernel_{operation}_RING_LL"
        return self._device_work(
            EventKind.KERNEL, name, start, end, stream, launch=launch, launcher="cudaLaunchKernelExC", call=call
        )

    def graph(self, launch: tuple[int, int], *kernels: tuple[int, int], stream: int = 7) -> Self:
        """Add a CUDA graph: one launch call with many kernels."""
        self._correlation += 1
        correlation = self._correlation
        self.runtime(*launch, name="cudaGraphLaunch", correlation=correlation)
        for start, end in kernels:
            self._add(EventKind.KERNEL, "gemm", start, end, thread=stream, device=self._device, correlation=correlation)
        return self

    def clock_ahead(self, offset_ns: int) -> Self:
        """Advance this process's clock by `offset_ns` in all recorded times."""
        self._clock = offset_ns
        return self

    def build(self) -> Trace:
        """Build the trace, as a reader would return it."""
        rows = list(self._rows)
        # A mark ends where the next one begins, and the last mark ends with the last host event.
        ends = [at for at, _ in self._marks[1:]]
        if self._marks:
            at = self._marks[-1][0]
            ends.append(max([at, *(-(-row.end // self._unit) for row in rows if row.device == HOST)]))
        rows.extend(
            _Row(EventKind.ANNOTATION, name, at * self._unit, end * self._unit, TRAINING)
            for (at, name), end in zip(self._marks, ends, strict=True)
        )
        rows.sort(key=lambda row: (row.start, -row.end))
        names = {name: index for index, name in enumerate(dict.fromkeys(row.name for row in rows))}
        clock = self._clock
        kind = np.array([row.kind for row in rows], np.uint8)
        name = np.array([names[row.name] for row in rows], np.int32)
        roles = roles_of(kind, name, tuple(names))
        table = EventTable(
            kind=kind,
            name=name,
            start_ns=np.array([row.start + clock for row in rows], np.int64),
            end_ns=np.array([row.end + clock for row in rows], np.int64),
            thread=np.array([row.thread for row in rows], np.int64),
            device=np.array([row.device for row in rows], np.int16),
            correlation=np.array([row.correlation for row in rows], np.int64),
            size_bytes=np.array([row.size_bytes for row in rows], np.int64),
            role=roles.role,
            direction=roles.direction,
            host_memory=roles.host_memory,
            names=tuple(names),
        )
        fields = self._trace_fields
        return Trace(
            source=f"rank{fields['rank']}.json",
            framework="pytorch",
            events=table,
            step_marks=step_marks_of(table),
            collectives=tuple(replace(row.call, row=i) for i, row in enumerate(rows) if row.call is not None),
            **fields,  # type: ignore[arg-type]  # the values are of the types that __init__ takes
        )

    def _device_work(
        self,
        kind: EventKind,
        name: str,
        start: int,
        end: int,
        stream: int,
        *,
        launch: Launch,
        launcher: str,
        size_bytes: int = NO_SIZE,
        call: CollectiveCall | None = None,
    ) -> Self:
        """Add device work and the call `launcher` that launches it; see the module's docstring for `launch`."""
        correlation = NO_CORRELATION
        if launch is not None:
            self._correlation += 1
            correlation = self._correlation
            begin, stop = launch if isinstance(launch, tuple) else (launch, launch)
            self.runtime(begin, stop, launcher, correlation)
        return self._add(
            kind,
            name,
            start,
            end,
            thread=stream,
            device=self._device,
            correlation=correlation,
            size_bytes=size_bytes,
            call=call,
        )

    def _add(
        self,
        kind: EventKind,
        name: str,
        start: int,
        end: int,
        *,
        thread: int | None = None,
        device: int = HOST,
        correlation: int = NO_CORRELATION,
        size_bytes: int = NO_SIZE,
        call: CollectiveCall | None = None,
    ) -> Self:
        """Add a row; times count from the current step's start, in `unit_ns`."""
        if end < start:
            raise ValueError(f"{name}: ends at {end}, before it starts at {start}")
        begin, stop = ((self._zero + time) * self._unit for time in (start, end))
        self._rows.append(
            _Row(
                kind,
                name,
                begin,
                stop,
                self._thread if thread is None else thread,
                device,
                correlation,
                size_bytes,
                call,
            )
        )
        return self
