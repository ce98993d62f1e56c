"""Define the timeline: the traces of all ranks on one clock, with steps and matched collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, union
from gpudiag.model.analysis import BUCKETS, StepUnit, Validity
from gpudiag.model.event import POINT_TO_POINT, Trace, workload_of
from gpudiag.units import NS_PER_US

Times = NDArray[np.int64]

UNKNOWN = -1
PAUSE_NS = 500 * NS_PER_US
"""A pause of a thread between two recorded events counts as Python code between framework calls if it is at most this
long. Measured: in traces of five workloads 99.5 % of pauses were below 0.3 ms (95 % below 0.02 ms); longer pauses were
data loading and waits."""
SAME_CLOCK_NS = 100 * NS_PER_US
"""Distances up to this between the matched ends of collectives are attributed to participants that leave at different
times, not to different clocks. A larger median distance makes the last arrival uncertain. Measured: 0.4 to 13 µs in the
median and at most 70 µs on one host."""
WAITED_NS = 30 * NS_PER_US
"""A pause of a CPU process's training thread in which a collective ends counts as waiting for the collective if it is
at least this long. Judgement: without a wait, calls follow each other within 5 to 10 µs; missed waits are shorter."""


class OpClass(IntEnum):
    """Class of a device op: a kernel, a copy or a memset."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class DeviceOps(msgspec.Struct, frozen=True, kw_only=True):
    """Work on one device as columns of equal length n, sorted by start, on the common clock.

    Attributes:
        start, end: int64[n], ns.
        op_class: uint8[n], an `OpClass`.
        row: int64[n], row in the trace's event table.
        stream: int64[n], the device stream.
        step: int32[n], index of the host step that launched the op; `UNKNOWN` if the launch was not recorded.
        launch_start, launch_end: int64[n], ns, of the runtime call that launched the op; `UNKNOWN` if not recorded.
        launch_thread: int64[n], host thread of this runtime call; `UNKNOWN` if not recorded.
    """

    start: Times
    end: Times
    op_class: NDArray[np.uint8]
    row: NDArray[np.int64]
    stream: NDArray[np.int64]
    step: NDArray[np.int32]
    launch_start: Times
    launch_end: Times
    launch_thread: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def intervals(self, *classes: OpClass) -> Intervals:
        """Return the ops of these classes as intervals, which may overlap."""
        wanted = np.zeros(256, np.bool_)
        wanted[list(classes)] = True
        chosen = wanted[self.op_class]
        return Intervals(self.start[chosen], self.end[chosen])


class HostThread(msgspec.Struct, frozen=True, kw_only=True):
    """Activity of one host thread, as interval sets on the common clock.

    Attributes:
        thread: the thread's id in the trace.
        busy: time inside a framework op or a runtime call, including short pauses in between.
        input: waits for data (DataLoader, `gpudiag.input`, tf.data).
        blocked: calls that waited for the device (synchronizations, blocking copies, releases), by start; may overlap.
        awaited: waits inside a framework op for a collective that the op enqueued; not in `busy`.
    """

    thread: int
    busy: Intervals
    input: Intervals
    blocked: Intervals
    awaited: Intervals = EMPTY


class HostSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Step marks of one process.

    Attributes:
        start: int64[n], ns, on the common clock.
        number: int64[n], the step numbers of the marks (counted from 0 if the marks have none, or not ascending).
        end: the end of the last mark, ns on the common clock.
        source: kind of the marks: `StepMarks.source`, `optimizer`, `range` (an enclosing range or a root module),
            `pattern` (a repeated pattern of kernels) or `none`.
        thread: the training thread, which has the marks.
        ends_known: whether `end` is the end of a mark; otherwise it is the end of the recording.
    """

    start: Times
    number: NDArray[np.int64]
    end: int
    source: str
    thread: int
    ends_known: bool = False

    def __len__(self) -> int:
        return len(self.start)


class TrackCollectives(msgspec.Struct, frozen=True, kw_only=True):
    """Communication on one device track as columns of equal length m, sorted by start, matched across ranks.

    Attributes:
        start, end: int64[m], ns, on the common clock.
        row: int64[m], row in the trace's event table.
        instance: int64[m], number of the collective, the same on every track; `UNKNOWN` if unmatched.
        last_arrival: int64[m], ns, arrival of the last participant that this rank waited for, within [start, end];
            equal to `start` if this rank was the last; `UNKNOWN` if unmatched.
        last_rank: int64[m], rank of the last participant; `UNKNOWN` if unmatched.
        kind: int32[m], index into `kinds`.
        kinds: distinct (operation, group, ranks in the group, size in bytes or None).
    """

    start: Times
    end: Times
    row: NDArray[np.int64]
    instance: NDArray[np.int64]
    last_arrival: Times
    last_rank: NDArray[np.int64]
    kind: NDArray[np.int32]
    kinds: tuple[tuple[str, str, int, int | None], ...]

    def __len__(self) -> int:
        return len(self.start)


class DeviceTrack(msgspec.Struct, frozen=True, kw_only=True):
    """A device of one rank; on CPU-only runs the training thread replaces the device.

    Attributes:
        rank: global rank.
        device: the device's ordinal in its process; `UNKNOWN` for a CPU track.
        device_name: model name, or "".
        trace: index of the trace in `Timeline.traces`.
        shift_ns: common time = event time + `shift_ns`, for every event of the track's trace.
        ops: the device's work (CPU tracks: top-level framework ops of the training thread).
        collectives: the device's communication.
        steps: the process's step marks.
        bounds: int64[k + 1], ns, bounds of the windows: window i is [bounds[i], bounds[i + 1]).
        window_steps: int64[k], the step number of each window.
        threads: thread id → host thread.
        overhead: times at which the profiler blocked the process ("Command Buffer Full"), for all threads together.
        communication: thread id → times at which the thread itself communicated.
        communication_calls: thread id → times of all host work for communication, with enqueues and bucket copies.
    """

    rank: int
    device: int
    device_name: str
    trace: int
    shift_ns: int
    ops: DeviceOps
    collectives: TrackCollectives
    steps: HostSteps
    bounds: Times
    window_steps: NDArray[np.int64]
    threads: dict[int, HostThread]
    overhead: Intervals = EMPTY
    communication: dict[int, Intervals] = {}
    communication_calls: dict[int, Intervals] = {}

    @property
    def label(self) -> str:
        """Return the name of the device, such as `cuda:0`; `cpu` for a CPU track."""
        return "cpu" if self.device == UNKNOWN else f"cuda:{self.device}"

    @property
    def host_communication(self) -> Intervals:
        """Return the times at which a host thread communicated, or waited for communication inside an op."""
        return union(*self.communication.values(), *(thread.awaited for thread in self.threads.values()))

    @property
    def before_first_op(self) -> Intervals:
        """Return the times from each step mark to the next framework op on the training thread, sorted and disjoint.

        If a fetch of input (`HostThread.input`) begins in between, the time begins with the fetch, because time before
        the fetch is not input.
        """
        thread = self.threads.get(self.steps.thread)
        if thread is None or len(thread.busy) == 0:
            return EMPTY
        # Index of the first busy interval that ends after each mark.
        index = np.searchsorted(thread.busy.end, self.steps.start, side="right")
        inside = index < len(thread.busy)
        start = self.steps.start[inside]
        first = np.maximum(thread.busy.start[index[inside]], start)
        if len(thread.input):
            fetch = np.searchsorted(thread.input.end, start, side="right")  # the first fetch that ends after each mark
            begin = np.append(thread.input.start, np.iinfo(np.int64).max)[fetch]
            start = np.where(begin <= first, np.maximum(begin, start), start)
        return union(Intervals(start, first))

    @property
    def is_cpu(self) -> bool:
        """Return whether the training thread takes the place of the device."""
        return self.device == UNKNOWN


class ClockAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """Alignment of one rank's clock to that of the reference rank, from the common ends of collectives.

    Attributes:
        rank: global rank.
        offset_ns: offset added to the rank's times.
        residual_ns: median distance between matched ends after adding the offset.
        matched: number of matched collectives.
    """

    rank: int
    offset_ns: int
    residual_ns: int
    matched: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """All device tracks on one clock, with warnings about their reliability.

    Attributes:
        framework: framework of the traces.
        world_size: number of ranks of the job.
        ranks_present: ranks with a trace.
        tracks: device tracks of all ranks.
        traces: traces of all processes.
        clocks: alignment of each rank's clock.
        validity: warnings, each a reason to trust the traces less.
        covered: share of the recorded device work that the analysed steps represent, 0 to 1, on the worst track.
        unseen: rank → int64[k + 1], ns, bounds of the host steps, for ranks whose device work was not recorded. These
            ranks have no track.
        left_out: ranks with a trace whose tracks were left out, because the other tracks represent them.
    """

    framework: str
    world_size: int
    ranks_present: tuple[int, ...]
    tracks: tuple[DeviceTrack, ...]
    traces: tuple[Trace, ...]
    clocks: tuple[ClockAlignment, ...]
    validity: tuple[Validity, ...]
    covered: float = 1.0
    unseen: dict[int, Times] = {}
    left_out: frozenset[int] = frozenset()

    @property
    def unit(self) -> StepUnit:
        """Return the kind of the windows: training steps, repeated units, or the whole recording."""
        sources = {track.steps.source for track in self.tracks}
        # A single range spans the whole recording. In a job that trains, the repeated pattern is a step.
        single_range = "range" in sources and all(len(track.steps) == 1 for track in self.tracks)
        if "none" in sources or single_range:
            return "recording"
        return "repeated-unit" if "pattern" in sources and workload_of(self.traces) != "training" else "step"

    @property
    def divides_work(self) -> bool:
        """Return whether process groups or messages suggest that ranks divide more than batches (e.g. a pipeline)."""
        if self.world_size < 2:
            return False
        several = any(sum(len(group.ranks) > 1 for group in trace.groups.values()) > 1 for trace in self.traces)
        special = POINT_TO_POINT | {"all_to_all"}
        return several or any(kind[0] in special for track in self.tracks for kind in track.collectives.kinds)

    def whole_collectives(self, tracks: Sequence[DeviceTrack]) -> Iterator[NDArray[np.bool_]]:
        """Yield bool[m] for each track: whether all participants of each collective have a track or were left out.

        A collective whose ranks are unknown counts as a collective of all ranks.
        """
        present = {track.rank for track in self.tracks} | self.left_out
        everyone = len(present) >= self.world_size
        whole: dict[int, bool] = {}  # by identity: the traces of a large job share the tuples of their groups' ranks
        for track in tracks:
            groups = {call.row: call.group_ranks for call in self.traces[track.trace].collectives}
            for group in groups.values():
                if id(group) not in whole:
                    whole[id(group)] = present.issuperset(group) if group else everyone
            rows = track.collectives.row.tolist()
            yield np.array([whole[id(groups[row])] if row in groups else everyone for row in rows], np.bool_)


class TrackAttribution(msgspec.Struct, frozen=True, kw_only=True):
    """The windows of one device track, divided into buckets (parts of the step time).

    Attributes:
        bounds: int64[k + 1], the windows.
        parts: bucket → intervals; the intervals of all buckets are disjoint and tile [bounds[0], bounds[k]).
        buckets_ns: int64[k, 8], length of each bucket in each window, in the order of `BUCKETS`.
        hidden_ns: int64[k], communication hidden behind compute, in each window.
        waits_ns: awaited rank → int64[k], the part of `communication_wait` in which this track waits for the rank.
        unsplit_ns: int64[k], part of `communication_transfer` in unmatched collectives; it may include waiting.
        unmarked_input: `idle` time between a step's start and its first op in which the host recorded nothing, usually
            because of an input pipeline without marks.
        queued: `idle` time in which the next op was already launched (gaps between queued kernels, dependencies
            between streams).
    """

    rank: int
    bounds: Times
    parts: dict[str, Intervals]
    buckets_ns: Times
    hidden_ns: Times
    waits_ns: dict[int, Times]
    unsplit_ns: Times
    unmarked_input: Intervals
    queued: Intervals

    @property
    def step_ns(self) -> Times:
        """Return int64[k]: the length of each window."""
        return np.diff(self.bounds)

    def check(self) -> None:
        """Check the conservation law: the buckets of each window sum exactly to its length.

        Raises:
            ArithmeticError: the sum differs, which is a defect of gpudiag, not of the trace.
        """
        if self.buckets_ns.shape != (len(self.bounds) - 1, len(BUCKETS)):
            raise ArithmeticError(f"rank {self.rank}: buckets of shape {self.buckets_ns.shape}")
        off = self.buckets_ns.sum(axis=1) - self.step_ns
        if (off != 0).any() or (self.buckets_ns < 0).any():
            raise ArithmeticError(f"rank {self.rank}: buckets miss their windows by {off.tolist()} ns")


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Attribution of all device tracks, in the order of `Timeline.tracks`."""

    tracks: tuple[TrackAttribution, ...]

    def check(self) -> None:
        """Call `TrackAttribution.check` for every track."""
        for track in self.tracks:
            track.check()
