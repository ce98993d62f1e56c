"""Runs a replay graph: in runs of nodes that need nothing from elsewhere, so that NumPy does each run at once.

Within a run of launches the host only adds up. Within a run of ops of one stream, with r[j] the time at which op j was
launched less its gap, and c[j] = gap + duration,

    end[j] = max(r[j], end[j - 1]) + c[j]   is   end[j] = C[j] + max(end[before], max over i <= j of (r[i] - C[i - 1]))

where C are the running sums of c. Runs are cut where a node is waited for from elsewhere or waits itself, and done in
an order in which everything that a run needs came before it.

Several costs are simulated at once, each a column of the same arrays: what a run takes is mostly NumPy's overhead per
call, which ten columns share. Each column's results are those that it would have alone, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.replay.graph import NONE, Graph
from gpudiag.analysis.diagnosis.replay.schedule import Kind, Schedule

Times = NDArray[np.float64]

#: The job has settled when no chain or stream differs from the turn before by more than this share of the turn.
_SETTLED = 1e-3
_MOST_TURNS = 24
_FEWEST_TURNS = 3
#: Nodes times columns that are held at once; what is more is simulated in several goes. An array of times then takes
#: 8 MB, and a simulation about ten of them.
_MOST_AT_ONCE = 1_000_000
#: Up to so many, the calls and arrays of a simulation are kept for the next one, by its number of columns: making them
#: takes as long as one of three turns. Ten arrays then take 12 MB. What is larger spends its time in the turns.
_MOST_KEPT = 150_000


@dataclass(frozen=True)
class Costs:
    """What an edit may change. Shapes as in the graph: host nodes n, device ops m; times in ns.

    Attributes:
        busy: float64[n], host work before each node.
        waiting: float64[n], what the host waited for data before each node.
        blocking: bool[n], whether the node still waits for its op.
        latency: float64[m], from the end of the call that launched each op to its earliest start.
        gap: float64[m], from the end of the work before each op to its earliest start.
        duration: float64[m], of ops that are no matched collectives.
        transfer: float64[m], of matched collectives from last arrival to end; NaN elsewhere.
        exchanged: False where the ranks exchange nothing; the replay itself does not hang on it.
    """

    busy: Times
    waiting: Times
    blocking: NDArray[np.bool_]
    latency: Times
    gap: Times
    duration: Times
    transfer: Times
    exchanged: bool = True

    @cached_property
    def digest(self) -> int:
        """The same for equal costs: rules often ask for the same edit again, or for one that changes nothing."""
        columns = (self.busy, self.waiting, self.blocking, self.latency, self.gap, self.duration, self.transfer)
        return hash(tuple(column.tobytes() for column in columns))


def unchanged(graph: Graph) -> Costs:
    """The costs as measured, the profiler's own included."""
    host, device = graph.host, graph.device
    return Costs(
        busy=host.busy,
        waiting=host.input + host.silent + host.stall,
        blocking=host.block_on != NONE,
        latency=device.latency,
        gap=device.gap,
        duration=device.end - device.start,
        transfer=device.transfer,
    )


def simulate(schedule: Schedule, costs: Costs) -> float:
    """Step time in ns at which the job settles with these costs.

    What counts is how far the chain or stream that moves most gets on in a turn. When the last of all nodes is reached
    says less: a device that works off what a host far ahead has given it is the last for many turns, at its own pace.
    """
    return settle(schedule, costs).step_ns


def waits(schedule: Schedule, costs: Costs) -> Times:
    """float64[m]: how long each op, once the job has settled, waits for its peers, in ns; 0 for all but collectives."""
    return settle(schedule, costs).waited


class Settled(msgspec.Struct, frozen=True):
    """The job once it has settled.

    Attributes:
        step_ns: its step time.
        steps_ns: float64[steps], how long each of the body's steps takes; their mean is `step_ns`.
        waited: float64[m], how long each collective waits for its peers, in ns; 0 for other ops.
    """

    step_ns: float
    steps_ns: Times
    waited: Times


def settle(schedule: Schedule, costs: Costs) -> Settled:
    """Replay in a circle until a turn takes as long as the one before."""
    return settle_each(schedule, [costs])[0]


def settle_each(schedule: Schedule, many: Sequence[Costs]) -> list[Settled]:
    """`settle` with each of these costs; five take twice as long as one."""
    nodes = len(schedule.graph.host.time) + len(schedule.graph.device.start)
    at_once = max(1, _MOST_AT_ONCE // max(nodes, 1))
    return [one for first in range(0, len(many), at_once) for one in _settle(schedule, many[first : first + at_once])]


def waited_for(graph: Graph, start: Times) -> Times:
    """float64[m]: from the start of each collective to the last of its participants' starts; 0 for other ops."""
    waited = np.zeros(len(start))
    if graph.device.peers:
        ops = np.fromiter(graph.device.peers, np.int64, len(graph.device.peers))
        counts = np.array([len(peers) for peers in graph.device.peers.values()])
        last = np.maximum.reduceat(start[np.concatenate([*graph.device.peers.values()])], np.cumsum(counts) - counts)
        waited[ops] = np.maximum(last - start[ops], 0.0)
    return waited


def _settle(schedule: Schedule, many: Sequence[Costs]) -> list[Settled]:
    """Turn after turn until the last column has settled; each is taken as it is in the turn in which it does."""
    state = _state_of(schedule, many)
    steps = schedule.graph.steps
    settled: dict[int, Settled] = {}

    def take(column: int, pace_ns: float) -> None:
        ends = state.step_ends(column)
        lengths = np.diff(ends, prepend=ends[-1] - pace_ns)
        settled[column] = Settled(pace_ns / steps, lengths, waited_for(schedule.graph, state.start[:, column]))

    ends = [state.ends()]
    advance = np.zeros_like(ends[0])
    for turn in range(1, _MOST_TURNS + 1):
        state.turn()
        ends.append(state.ends())
        before, advance = advance, ends[-1] - ends[-2]
        if turn < _FEWEST_TURNS:
            continue
        pace = advance.max(axis=0, initial=0.0)
        alike = np.abs(advance - before).max(axis=0, initial=0.0) <= _SETTLED * pace
        for column in np.flatnonzero(alike).tolist():
            if column not in settled:
                take(column, float(pace[column]))
        if len(settled) == len(many):
            break
    # Turns that differ for ever alternate; then their mean is the pace.
    half = _MOST_TURNS // 2
    for column in sorted(set(range(len(many))) - settled.keys()):
        take(column, float((ends[-1] - ends[half])[:, column].max(initial=0.0)) / (_MOST_TURNS - half))
    return [settled[column] for column in range(len(many))]


def _state_of(schedule: Schedule, many: Sequence[Costs]) -> _State:
    """The state before the first turn; the one of an earlier simulation, where it was kept, with these costs."""
    kept = schedule.kept.get(len(many))
    state = kept if isinstance(kept, _State) else _State(schedule, len(many))
    if state.time.size + state.end.size <= _MOST_KEPT:
        schedule.kept[len(many)] = state
    state.begin(many)
    return state


class _State:
    """Times of all nodes, from one turn to the next: float64[nodes, columns], a column for each of the costs.

    The runs are made into calls on rows and slices of these arrays, once: cutting slices takes as long as adding them.
    """

    def __init__(self, schedule: Schedule, columns: int) -> None:
        self.schedule, self.graph = schedule, schedule.graph
        of_nodes = (len(self.graph.host.time), columns)
        of_ops = (len(self.graph.device.start), columns)
        self.time, self.work, self.work_through, self.delay = (np.empty(of_nodes) for _ in range(4))
        self.start, self.end, self.ready, self.through = (np.empty(of_ops) for _ in range(4))
        self.latency, self.gap, self.duration, self.transfer = (np.empty(of_ops) for _ in range(4))
        self.sums = np.zeros((max(len(self.time), len(self.end)) + 1, columns))
        self.calls = self._calls()

    def begin(self, many: Sequence[Costs]) -> None:
        """Before the first turn stands what was measured, one turn earlier."""
        host, device, before = self.graph.host, self.graph.device, self.graph.length_ns
        for column, costs in enumerate(many):
            np.add(costs.busy, costs.waiting, out=self.work[:, column])
            self.gap[:, column] = costs.gap
            self.duration[:, column] = costs.duration
            self.transfer[:, column] = costs.transfer
            # -inf holds nothing up: ops whose launch was not captured, calls that no longer block.
            self.latency[:, column] = np.where(device.launch != NONE, costs.latency, -np.inf)
            self.delay[:, column] = np.where(costs.blocking, host.block_delay, -np.inf)
        self._sums_within(self.work, self.schedule.first_nodes, self.work_through)
        cost = np.add(self.gap, self.duration, out=self.end)  # where the ends come to stand: new memory takes longer
        self._sums_within(cost, self.schedule.first_ops, self.through)
        np.subtract(self.through, cost, out=cost)
        np.subtract(np.subtract(self.latency, self.gap, out=self.ready), cost, out=self.ready)
        self.time[:] = (host.time - before)[:, None]
        self.start[:] = (device.start - before)[:, None]
        self.end[:] = (device.end - before)[:, None]

    def _sums_within(self, values: Times, first: NDArray[np.int64], out: Times) -> None:
        """Of each row the sum of it and all before it from the row `first` of its run on."""
        before = self.sums[: len(values) + 1]
        np.cumsum(values, axis=0, out=before[1:])
        np.take(before, first, axis=0, out=out, mode="clip")
        np.subtract(before[1:], out, out=out)

    def ends(self) -> Times:
        """When the last node of each chain and stream was reached."""
        return np.concatenate([self.time[self.schedule.last_nodes], self.end[self.schedule.last_ops]])

    def step_ends(self, column: int) -> Times:
        """float64[steps]: when each step's last node was reached, on the stream of most ops, or else on the host."""
        nodes, on_device = self.schedule.step_ends
        return np.maximum.accumulate((self.end if on_device else self.time)[nodes, column])

    def turn(self) -> None:
        """Go through all runs once."""
        for call, arguments in self.calls:
            call(*arguments)

    def _calls(self) -> list[tuple[Callable[..., object], tuple[object, ...]]]:
        host, device = self.graph.host, self.graph.device
        time, start, end = self.time, self.start, self.end
        launch, block_on = device.launch.tolist(), host.block_on.tolist()
        wait_a, wait_b = device.wait_a.tolist(), device.wait_b.tolist()
        host_run, host_block, device_run, device_wait, _, collective_end = Kind
        calls: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        for kind, a, b, before in self.schedule.runs:
            if kind is host_run:
                calls.append((np.add, (time[before], self.work_through[a:b], time[a:b])))
            elif kind is host_block:
                calls.append((_block, (time[before], self.work[a], end[block_on[a]], self.delay[a], time[a])))
            elif kind is device_run:
                if b - a == 1:
                    calls.append((_one_op, (time[launch[a]], self.ready[a], self.through[a], end[before], end[a])))
                    continue
                run = (time, device.launch[a:b], self.ready[a:b], self.through[a:b], end[before], end[a:b])
                calls.append((_device_run, run))
            elif kind is collective_end:
                calls.append((_meet, (start, device.peers[a], self.transfer[a], end[a])))
            else:
                waited = [end[op] for op in (wait_a[a], wait_b[a]) if op != NONE]
                ends = [end[before], *waited]
                calls.append((_begin, (time[launch[a]], self.latency[a], ends, self.gap[a], start[a])))
                if kind is device_wait:
                    calls.append((np.add, (start[a], self.duration[a], end[a])))
        return calls


def _block(before: Times, work: Times, waited: Times, delay: Times, out: Times) -> None:
    np.maximum(before + work, waited + delay, out=out)


def _one_op(launched: Times, after_launch: Times, through: Times, before: Times, out: Times) -> None:
    np.add(through, np.maximum(launched + after_launch, before), out=out)


def _device_run(  # noqa: PLR0917  # what a run needs, in the order in which it is used
    time: Times, launch: NDArray[np.int64], after_launch: Times, through: Times, before: Times, out: Times
) -> None:
    ready = time.take(launch, axis=0)
    ready += after_launch
    np.maximum.accumulate(ready, axis=0, out=ready)
    np.add(through, np.maximum(ready, before, out=ready), out=out)


def _meet(start: Times, peers: NDArray[np.int64], transfer: Times, out: Times) -> None:
    np.add(np.maximum.reduce(start.take(peers, axis=0), axis=0), transfer, out=out)


def _begin(launched: Times, latency: Times, ends: Sequence[Times], gap: Times, out: Times) -> None:
    ready = ends[0]
    for other in ends[1:]:
        ready = np.maximum(ready, other)
    np.maximum(ready + gap, launched + latency, out=out)
