"""Timeline: the traces of all ranks on one clock, cut into steps, with their collectives matched."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import EMPTY, Intervals, union
from gpudiag.model.analysis import StepUnit, Validity
from gpudiag.model.event import Trace, workload_of
from gpudiag.units import NS_PER_US

Times = NDArray[np.int64]

UNKNOWN = -1
PAUSE_NS = 500 * NS_PER_US
"""Pauses of a thread between two recorded events up to this long count as Python running between framework calls.
Measured: in traces of five workloads 99.5 % of such pauses were below 0.3 ms (95 % below 0.02 ms); the rest were
loaders and waits."""
WAITED_NS = 30 * NS_PER_US
"""A pause of a CPU's training thread of at least this length, in which a collective ended, is waiting for it.
Judgement: calls follow each other within 5 to 10 µs, and a wait that is missed is no longer than this."""


class OpClass(IntEnum):
    """What a device op counts as."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class DeviceOps(msgspec.Struct, frozen=True, kw_only=True):
    """Work on one device as columns of equal length n, by start, on the common clock.

    Attributes:
        start, end: int64[n], ns.
        op_class: uint8[n], an `OpClass`.
        row: int64[n], row in the trace's event table.
        stream: int64[n].
        step: int32[n], index of the host step in which the op was launched; `UNKNOWN` when its launch was not captured.
        launch_start, launch_end: int64[n], the runtime call that launched it; `UNKNOWN` when not captured.
        launch_thread: int64[n], host thread of that call; `UNKNOWN` when not captured.
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
        """The ops of these classes as raw intervals (not yet a set)."""
        wanted = np.zeros(256, np.bool_)
        wanted[list(classes)] = True
        chosen = wanted[self.op_class]
        return Intervals(self.start[chosen], self.end[chosen])


class HostThread(msgspec.Struct, frozen=True, kw_only=True):
    """What one host thread was doing, as interval sets on the common clock.

    Attributes:
        thread: the thread's id in the trace.
        busy: inside any framework op, annotation of work, or runtime call, short pauses between them included.
        input: waiting for data (DataLoader, `gpudiag.input`, tf.data).
        blocked: raw intervals of calls that waited for the device, by start: synchronizations and copies that block.
        awaited: waiting inside a framework op for a collective that the op handed over, as a set; not in `busy`.
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
        number: int64[n], the step numbers that the marks carry (counted from 0 where they carry none).
        end: the end of the last mark.
        source: what marked them: `gpudiag.step`, `ProfilerStep`, `optimizer`, `range` (an enclosing range or a root
            module), `pattern` (found) or `none`.
        thread: the training thread, where the marks are.
        ends_known: whether `end` is the end of a mark and not only of what was recorded.
    """

    start: Times
    number: NDArray[np.int64]
    end: int
    source: str
    thread: int
    ends_known: bool = False

    def __len__(self) -> int:
        return len(self.start)


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """Communication on one lane as columns of equal length m, by start, matched across ranks.

    Attributes:
        start, end: int64[m], ns, on the common clock.
        row: int64[m], row in the trace's event table.
        instance: int64[m], same number on every lane for the same collective; `UNKNOWN` where no partner was found.
        last_arrival: int64[m], when the last participant that this rank had to wait for arrived, within [start, end];
            equal to `start` where this rank was itself the last. `UNKNOWN` where no partner was found.
        last_rank: int64[m], that participant's rank; `UNKNOWN` as above.
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
    """One device of one rank; on CPU-only runs the training thread stands in for the device.

    Attributes:
        rank: global rank.
        device: ordinal in its process; `UNKNOWN` for a CPU lane.
        device_name: model name, or "".
        trace: index of the trace in `Timeline.traces`.
        shift_ns: common time = event time + `shift_ns`, for every event of this lane's trace.
        ops: the device's work (CPU lanes: top-level framework ops of the training thread).
        collectives: its communication.
        steps: the process's step marks.
        bounds: int64[k + 1], the windows: window i is [bounds[i], bounds[i + 1]).
        window_steps: int64[k], the step number of each window.
        threads: host threads by id.
        overhead: when the profiler held the process up ("Command Buffer Full"), as a set; it has no thread.
        exchange: when each of the process's host threads was itself at an exchange, as sets by thread id.
        exchange_calls: the same with all that the exchange needs of them: handing collectives over, packing gradients.
    """

    rank: int
    device: int
    device_name: str
    trace: int
    shift_ns: int
    ops: DeviceOps
    collectives: Collectives
    steps: HostSteps
    bounds: Times
    window_steps: NDArray[np.int64]
    threads: dict[int, HostThread]
    overhead: Intervals = EMPTY
    communication: dict[int, Intervals] = {}
    communication_calls: dict[int, Intervals] = {}

    @property
    def label(self) -> str:
        """`cuda:0`-like name of the device, `cpu` for a CPU lane."""
        return "cpu" if self.device == UNKNOWN else f"cuda:{self.device}"

    @property
    def host_communication(self) -> Intervals:
        """When any of the process's host threads was at an exchange, or waited for one inside an op."""
        return union(*self.communication.values(), *(thread.awaited for thread in self.threads.values()))

    @property
    def before_first_op(self) -> Intervals:
        """From each step mark to the first framework op that the training thread recorded after it, as a set.

        Where fetching is marked in between, from there: what passes before it is no loader's, as after an update that
        ends a step.
        """
        thread = self.threads.get(self.steps.thread)
        if thread is None or len(thread.busy) == 0:
            return EMPTY
        index = np.searchsorted(thread.busy.end, self.steps.start, side="right")
        inside = index < len(thread.busy)
        start = self.steps.start[inside]
        first = np.maximum(thread.busy.start[index[inside]], start)
        if len(thread.input):
            fetched = np.searchsorted(thread.input.end, start, side="right")
            begin = np.append(thread.input.start, np.iinfo(np.int64).max)[fetched]
            start = np.where(begin <= first, np.maximum(begin, start), start)
        return union(Intervals(start, first))

    @property
    def is_cpu(self) -> bool:
        """True when the training thread stands in for the device."""
        return self.device == UNKNOWN


class ClockAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's clock was brought onto the reference rank's, from the common ends of collectives.

    `offset_ns` was added to the rank's times; `residual_ns` is the median distance of matched ends after that.
    """

    rank: int
    offset_ns: int
    residual_ns: int
    matched: int
    unmatched: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """All lanes on one clock, and what stands in the way of trusting them."""

    framework: str
    world_size: int
    ranks_present: tuple[int, ...]
    tracks: tuple[DeviceTrack, ...]
    traces: tuple[Trace, ...]
    clocks: tuple[ClockAlignment, ...]
    validity: tuple[Validity, ...]
    covered: float = 1.0
    """Share of the device work in the recording that the analysed steps stand for, 0 to 1; of all lanes the least."""
    unseen: dict[int, Times] = {}
    """Rank → int64[k + 1], host steps, of processes whose devices' work is missing: they have no lane."""

    @property
    def unit(self) -> StepUnit:
        """What the windows hold: training steps, a unit that repeats within the recording, or all of the recording."""
        sources = {track.steps.source for track in self.tracks}
        lone = "range" in sources and all(len(track.steps) == 1 for track in self.tracks)
        if "none" in sources or lone:
            return "recording"
        return "repeated-unit" if "pattern" in sources and workload_of(self.traces) != "training" else "step"

    def whole_collectives(self, track: DeviceTrack) -> NDArray[np.bool_]:
        """bool[m], of the lane's collectives: all who take part have a lane, so that it is known who came last."""
        seen = {one.rank for one in self.tracks}
        ranks = {call.row: call.group_ranks for call in self.traces[track.trace].collectives}
        whole = {
            told: seen.issuperset(told) if told else len(seen) >= self.world_size for told in {(), *ranks.values()}
        }
        return np.array([whole[ranks.get(row, ())] for row in track.collectives.row.tolist()], np.bool_)
