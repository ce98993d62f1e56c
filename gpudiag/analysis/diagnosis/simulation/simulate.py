"""Runs a replay graph turn after turn until the job has settled.

What the runs of the schedule hand on are the variables of a max-plus system, each the largest of sums of one variable
and one weight (Baccelli, Cohen, Olsder & Quadrat, Synchronization and Linearity, 1992, chapter 2): the time of each
run's last node and, of collectives, the starts and when the last participant starts. The weights are what the costs in
between come to, and NumPy works them out at once, for all runs. Within a run of launches the host only adds up. Within
a run of ops of one stream, with r[j] the time at which op j was launched less its gap, and c[j] = gap + duration,

    end[j] = max(r[j], end[j - 1]) + c[j]   is   end[j] = C[j] + max(end[before], max over i <= j of (r[i] - C[i - 1]))

where C are the running sums of c; and of all that one run of the host launched only the largest r[i] - C[i - 1] counts.
A turn of thirty thousand nodes so takes a thousand sums and comparisons.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum, auto

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.graph import NONE, Costs, Graph
from gpudiag.analysis.diagnosis.simulation.schedule import Kind, Run, Schedule

Times = NDArray[np.float64]
Index = NDArray[np.int64]

#: The job has settled when no chain or stream differs from the turn before by more than this share of the turn.
_SETTLED = 1e-3
_MOST_TURNS = 24
_FEWEST_TURNS = 3
#: The variable that holds nothing up.
_NEVER = 0


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


def settle(system: System, weights: Times) -> Settled:
    """Replay in a circle with these weights until a turn takes as long as the one before.

    What counts is how far the chain or stream that moves most gets on in a turn. When the last of all nodes is reached
    says less: a device that works off what a host far ahead has given it is the last for many turns, at its own pace.
    """
    rows, times = system.rows(weights), system.measured.copy()
    ends = [[times[at] for at in system.lasts]]
    advance, pace = [0.0] * len(system.lasts), 0.0
    for turn in range(1, _MOST_TURNS + 1):
        for out, first, first_weight, second, second_weight in rows:
            one, other = times[first] + first_weight, times[second] + second_weight
            times[out] = one if one > other else other  # noqa: FURB136  # a call takes three times as long
        ends.append([times[at] for at in system.lasts])
        before, advance = advance, _differences(ends[-1], ends[-2])
        pace = max(advance, default=0.0)
        if turn >= _FEWEST_TURNS and max(map(abs, _differences(advance, before)), default=0.0) <= _SETTLED * pace:
            break
    else:
        # Turns that differ for ever alternate; then their mean is the pace.
        half = _MOST_TURNS // 2
        pace = max(_differences(ends[-1], ends[half]), default=0.0) / (_MOST_TURNS - half)
    step_ends = np.maximum.accumulate([times[at] for at in system.step_ends])
    return Settled(
        pace / system.graph.steps, np.diff(step_ends, prepend=step_ends[-1] - pace), system.waited(np.array(times))
    )


def _differences(now: list[float], before: list[float]) -> list[float]:
    return [one - other for one, other in zip(now, before, strict=True)]


class _Weight(IntEnum):
    """What a weight is; of a host node, of an op, or of ops of one run that one host run launched."""

    NOTHING = auto()
    WORK = auto()
    """From the node before to this one."""
    WORK_OF_RUN = auto()
    """From the node before the run to this one."""
    DELAY = auto()
    """From the end of the op that a call waits for to the end of the call."""
    GAP = auto()
    """From the end of what an op waits for to its start."""
    GAP_AND_DURATION = auto()
    """From the end of what an op waits for to its end."""
    LAUNCH = auto()
    """From what the host run that launched an op follows to the op's start."""
    LAUNCH_AND_DURATION = auto()
    """From what the host run that launched an op follows to the op's end."""
    OPS_OF_RUN = auto()
    """From the op before the run to the end of this one, which is the last."""
    LAUNCHED_OF_RUN = auto()
    """From what the host run that launched some of a run's ops follows to the end of the last op."""
    TRANSFER = auto()


_Term = tuple[int, _Weight, int]


class System:
    """A graph ready to be replayed with any costs.

    Variables 1 to the number of runs are the times of their last nodes, of a collective's first run its start; the
    others are what the first run of a chain follows, and when the last participant of a collective starts.

    Attributes:
        graph: the graph.
        measured: of each variable what was measured, one turn earlier.
        lasts: the variables of the last nodes of chains and of the last ops of streams.
        step_ends: the variables of the nodes with which steps end.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._schedule = schedule = Schedule(graph)
        self.measured = [-np.inf, *(_measured(graph, run) - graph.length_ns for run in schedule.runs)]
        self._out: list[int] = []
        self._first: list[int] = []
        self._second: list[int] = []
        self._uses: defaultdict[_Weight, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._begins: dict[int, int] = {}
        self._arrivals: dict[bytes, int] = {}
        self._collectives: list[tuple[int, int, int]] = []
        self._launchers = self._find_launchers()
        for index, run in enumerate(schedule.runs):
            self._add_run(index, run)
        self._places = {kind: (np.array(places), np.array(of)) for kind, (places, of) in self._uses.items()}
        self.lasts = [*map(self._node, schedule.last_nodes.tolist()), *map(self._op, schedule.last_ops.tolist())]
        ends, on_device = schedule.step_ends
        self.step_ends = list(map(self._op if on_device else self._node, ends.tolist()))

    def rows(self, weights: Times) -> list[tuple[int, int, float, int, float]]:
        """What a turn does, in order: a variable becomes the larger of two, each with a weight added to it, in ns."""
        first, second = weights.reshape(-1, 2).T.tolist()
        return list(zip(self._out, self._first, first, self._second, second, strict=True))

    def weights(self, costs: Costs) -> Times:
        """float64[2 rows]: all that these costs come to in a replay, in ns."""
        host, device = self.graph.host, self.graph.device
        work, cost = costs.busy + costs.waiting, costs.gap + costs.duration
        work_of_run = _sums_within(work, self._schedule.first_nodes)
        ops_of_run = _sums_within(cost, self._schedule.first_ops)
        work_of_run[self._blocks] = 0.0  # what they launch is counted from themselves
        launch = work_of_run[device.launch] + costs.latency
        ops, first, last = self._launched
        ready = (launch - costs.gap - (ops_of_run - cost))[ops]
        values = {
            _Weight.WORK: work,
            _Weight.WORK_OF_RUN: work_of_run,
            _Weight.DELAY: np.where(costs.blocking, host.block_delay, -np.inf),
            _Weight.GAP: costs.gap,
            _Weight.GAP_AND_DURATION: cost,
            _Weight.LAUNCH: launch,
            _Weight.LAUNCH_AND_DURATION: launch + costs.duration,
            _Weight.OPS_OF_RUN: ops_of_run,
            _Weight.LAUNCHED_OF_RUN: np.maximum.reduceat(ready, first) + ops_of_run[last] if len(ops) else ready,
            _Weight.TRANSFER: costs.transfer,
        }
        weights = np.zeros(2 * len(self._out))
        for kind, (places, of) in self._places.items():
            weights[places] = values[kind][of]
        return weights

    def waited(self, times: Times) -> Times:
        """float64[m]: how long each collective waited for its peers, in ns; 0 for other ops."""
        waited = np.zeros(len(self.graph.device.start))
        ops, start, last = np.array(self._collectives, np.int64).reshape(-1, 3).T
        waited[ops] = np.maximum(times[last] - times[start], 0.0)
        return waited

    def _find_launchers(self) -> dict[int, list[tuple[int, int]]]:
        """By device run the host runs that launched into it, each with the place of the pair in `_launched`."""
        runs, places, launch = self._schedule.runs, self._schedule.places, self.graph.device.launch
        kind = np.array([run.kind for run in runs], np.int64)
        self._blocks = np.flatnonzero(kind[places.node] == Kind.HOST_BLOCK)
        ops = np.flatnonzero((kind[places.end] == Kind.DEVICE_RUN) & (launch != NONE))
        pair = places.end[ops] * len(runs) + places.node[launch[ops]]
        order = np.argsort(pair, kind="stable")
        ops, pair = ops[order], pair[order]
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        device_runs, host_runs = np.divmod(pair[first], len(runs))
        last = np.array([runs[index].after - 1 for index in device_runs.tolist()], np.int64)
        self._launched = (ops, first, last)
        launchers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for at, (device_run, host_run) in enumerate(zip(device_runs.tolist(), host_runs.tolist(), strict=True)):
            launchers[device_run].append((host_run, at))
        return launchers

    def _add_run(self, index: int, run: Run) -> None:
        first, last, device = run.first, run.after - 1, self.graph.device
        if run.kind == Kind.HOST_RUN:
            if run.before >= first:
                self._add(self._begin(index), [(self._node(run.before), _Weight.NOTHING, 0)])
            self._add(index + 1, [(self._node(run.before), _Weight.WORK_OF_RUN, last)])
        elif run.kind == Kind.HOST_BLOCK:
            waited = self._op(int(self.graph.host.block_on[first]))
            self._add(index + 1, [(self._node(run.before), _Weight.WORK, first), (waited, _Weight.DELAY, first)])
        elif run.kind == Kind.DEVICE_RUN:
            launched = [(self._begin(of), _Weight.LAUNCHED_OF_RUN, pair) for of, pair in self._launchers[index]]
            self._add(index + 1, [(self._op(run.before), _Weight.OPS_OF_RUN, last), *launched])
        elif run.kind == Kind.COLLECTIVE_END:
            self._add(index + 1, [(self._arrival(first), _Weight.TRANSFER, first)])
        else:
            to_end = run.kind == Kind.DEVICE_WAIT
            waits = [op for op in (int(device.wait_a[first]), int(device.wait_b[first])) if op != NONE]
            gap = _Weight.GAP_AND_DURATION if to_end else _Weight.GAP
            terms = [(self._op(op), gap, first) for op in (run.before, *waits)]
            if device.launch[first] != NONE:
                launch = _Weight.LAUNCH_AND_DURATION if to_end else _Weight.LAUNCH
                terms.append((self._begin(int(self._schedule.places.node[device.launch[first]])), launch, first))
            self._add(index + 1, terms)

    def _add(self, out: int, terms: list[_Term]) -> None:
        """A variable that becomes the largest of so many; what it was itself may be the first of them only."""
        first, *others = terms
        for term in others or [(_NEVER, _Weight.NOTHING, 0)]:
            for source, place, (variable, kind, of) in (
                (self._first, 2 * len(self._out), first),
                (self._second, 2 * len(self._out) + 1, term),
            ):
                source.append(variable)
                if kind is not _Weight.NOTHING:
                    self._uses[kind][0].append(place)
                    self._uses[kind][1].append(of)
            self._out.append(out)
            first = (out, _Weight.NOTHING, 0)

    def _node(self, node: int) -> int:
        """The variable of a host node that is the last of its run."""
        return int(self._schedule.places.node[node]) + 1

    def _op(self, op: int) -> int:
        """The variable of the end of an op that is the last of its run."""
        return int(self._schedule.places.end[op]) + 1

    def _begin(self, index: int) -> int:
        """The variable from which a host run's launches are counted: what it follows; of a call that waits, its own."""
        run = self._schedule.runs[index]
        if run.kind == Kind.HOST_BLOCK:
            return index + 1
        if run.before < run.first:
            return self._node(run.before)
        # The chain's last node: the next turn reaches it before the device has done what this one launched.
        if index not in self._begins:
            self._begins[index] = len(self.measured)
            self.measured.append(float(self.graph.host.time[run.before]) - 2 * self.graph.length_ns)
        return self._begins[index]

    def _arrival(self, op: int) -> int:
        """The variable of the last arrival at a collective."""
        peers, start = self.graph.device.peers[op], self._schedule.places.start
        told = peers.tobytes()
        if told not in self._arrivals:
            starts = [start[peer] + 1 for peer in peers.tolist()]
            self._arrivals[told] = len(self.measured)
            self.measured.append(max(self.measured[at] for at in starts))
            self._add(self._arrivals[told], [(at, _Weight.NOTHING, 0) for at in starts])
        self._collectives.append((op, start[op] + 1, self._arrivals[told]))
        return self._arrivals[told]


def _measured(graph: Graph, run: Run) -> float:
    """When a run's last node was reached, or a collective's op started."""
    if run.kind in {Kind.HOST_RUN, Kind.HOST_BLOCK}:
        return float(graph.host.time[run.after - 1])
    return float((graph.device.start if run.kind == Kind.COLLECTIVE_START else graph.device.end)[run.after - 1])


def _sums_within(values: Times, first: Index) -> Times:
    """Of each value the sum of it and all before it from the place `first` of its run on."""
    before = np.zeros(len(values) + 1)
    np.cumsum(values, out=before[1:])
    return before[1:] - before[first]
