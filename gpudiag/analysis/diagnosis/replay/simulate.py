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

from collections.abc import Callable, Iterator, Sequence
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
        joined: False lets every collective go without waiting for its peers.
    """

    busy: Times
    waiting: Times
    blocking: NDArray[np.bool_]
    latency: Times
    gap: Times
    duration: Times
    transfer: Times
    joined: bool = True

    @cached_property
    def digest(self) -> int:
        """The same for equal costs: rules often ask for the same edit again, or for one that changes nothing."""
        columns = (self.busy, self.waiting, self.blocking, self.latency, self.gap, self.duration, self.transfer)
        return hash((self.joined, *(column.tobytes() for column in columns)))


def unchanged(graph: Graph) -> Costs:
    """The costs as measured, the profiler's own included."""
    host, device = graph.host, graph.device
    return Costs(
        busy=host.busy,
        waiting=host.input + host.silent,
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
        waited: float64[m], how long each collective waits for its peers, in ns; 0 for other ops.
    """

    step_ns: float
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
    state = _State(schedule, many)
    steps = max(schedule.graph.steps, 1)
    settled: dict[int, Settled] = {}

    def take(column: int, pace_ns: float) -> None:
        settled[column] = Settled(pace_ns / steps, waited_for(schedule.graph, state.start[:, column]))

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


class _State:
    """Times of all nodes, from one turn to the next: float64[nodes, columns], a column for each of the costs.

    The runs are made into calls on rows and slices of these arrays, once: cutting slices takes as long as adding them.
    """

    def __init__(self, schedule: Schedule, many: Sequence[Costs]) -> None:
        graph = schedule.graph
        self.schedule, self.graph = schedule, graph
        # Before the first turn stands what was measured, one turn earlier.
        self.time = _repeated(graph.host.time - graph.length_ns, len(many))
        self.start = _repeated(graph.device.start - graph.length_ns, len(many))
        self.end = _repeated(graph.device.end - graph.length_ns, len(many))
        self.calls = list(self._calls(many))

    def ends(self) -> Times:
        """When the last node of each chain and stream was reached."""
        return np.concatenate([self.time[self.schedule.last_nodes], self.end[self.schedule.last_ops]])

    def turn(self) -> None:
        """Go through all runs once."""
        for call, arguments in self.calls:
            call(*arguments)

    def _calls(self, many: Sequence[Costs]) -> Iterator[tuple[Callable[..., object], tuple[object, ...]]]:
        host, device = self.graph.host, self.graph.device
        time, start, end = self.time, self.start, self.end
        first_node, first_op = self.schedule.first_nodes, self.schedule.first_ops
        work = np.stack([costs.busy + costs.waiting for costs in many], axis=1)
        work_through = _sums_within(work, first_node)
        gap = np.stack([costs.gap for costs in many], axis=1)
        duration = np.stack([costs.duration for costs in many], axis=1)
        transfer = np.stack([costs.transfer for costs in many], axis=1)
        cost = gap + duration
        through = _sums_within(cost, first_op)
        # -inf holds nothing up: ops whose launch was not captured, calls that no longer block.
        latency = np.stack([np.where(device.launch != NONE, costs.latency, -np.inf) for costs in many], axis=1)
        ready = latency - gap - (through - cost)
        blocking = np.stack([costs.blocking for costs in many], axis=1)
        delay = np.where(blocking, host.block_delay[:, None], -np.inf)
        without_peers = np.array([not costs.joined for costs in many], np.bool_)
        alone = without_peers if without_peers.any() else None
        launch, block_on, wait_a, wait_b = device.launch, host.block_on, device.wait_a, device.wait_b
        host_run, host_block, device_run, device_wait, _, collective_end = Kind
        for kind, a, b, before in self.schedule.runs:
            if kind is host_run:
                yield np.add, (time[before], work_through[a:b], time[a:b])
            elif kind is host_block:
                yield _block, (time[before], work[a], end[block_on[a]], delay[a], time[a])
            elif kind is device_run:
                yield _device_run, (time, launch[a:b], ready[a:b], through[a:b], end[before], end[a:b])
            elif kind is collective_end:
                yield _meet, (start, device.peers[a], alone, start[a], transfer[a], end[a])
            else:
                waited = [end[op] for op in (wait_a[a], wait_b[a]) if op != NONE]
                yield _begin, (time[launch[a]], latency[a], [end[before], *waited], gap[a], start[a])
                if kind is device_wait:
                    yield np.add, (start[a], duration[a], end[a])


def _block(before: Times, work: Times, waited: Times, delay: Times, out: Times) -> None:
    np.maximum(before + work, waited + delay, out=out)


def _device_run(  # noqa: PLR0917  # what a run needs, in the order in which it is used
    time: Times, launch: NDArray[np.int64], after_launch: Times, through: Times, before: Times, out: Times
) -> None:
    ready = time.take(launch, axis=0)
    ready += after_launch
    np.maximum.accumulate(ready, axis=0, out=ready)
    np.add(through, np.maximum(ready, before, out=ready), out=out)


def _meet(  # noqa: PLR0917  # as above
    start: Times, peers: NDArray[np.int64], alone: NDArray[np.bool_] | None, own: Times, transfer: Times, out: Times
) -> None:
    last = start.take(peers, axis=0).max(axis=0)
    if alone is not None:
        last = np.where(alone, own, last)
    np.add(last, transfer, out=out)


def _begin(launched: Times, latency: Times, ends: Sequence[Times], gap: Times, out: Times) -> None:
    ready = ends[0]
    for other in ends[1:]:
        ready = np.maximum(ready, other)
    np.maximum(ready + gap, launched + latency, out=out)


def _repeated(values: Times, columns: int) -> Times:
    """float64[n, columns]: the same values in every column."""
    return np.repeat(values[:, None], columns, axis=1)


def _sums_within(values: Times, first: NDArray[np.int64]) -> Times:
    """float64[n, columns]: the sum of each row and all before it from the row `first` of its run on."""
    before: Times = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=before[1:])
    sums: Times = before[1:] - before[first]
    return sums
