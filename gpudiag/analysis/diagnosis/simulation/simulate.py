"""Simulate a graph iteration after iteration until the job reaches its steady state.

The simulation is a max-plus system: each variable is the largest of several sums of one variable and one weight
(Baccelli, Cohen, Olsder & Quadrat, Synchronization and Linearity, 1992, chapter 2). A run is a series of host nodes or
ops that need no comparison in between (`schedule`). The variables are the time of each run's last node, the start of
each collective, and the last arrival at each collective. A weight is the sum of the durations between two variables.
NumPy computes the weights of all runs at once. Within a run of launches, the host time is a running sum. Within a run
of ops of one stream, let r[j] = launch time + latency - gap of op j, and c[j] = gap + duration. Then

    end[j] = max(r[j], end[j - 1]) + c[j]   is   end[j] = C[j] + max(end[before], max over i <= j of (r[i] - C[i - 1]))

where C are the running sums of c. For the ops that one host run launched, only the largest r[i] - C[i - 1] counts.
So an iteration with thirty thousand nodes needs only a thousand sums and comparisons.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum, auto

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, Index, Scenario, Times
from gpudiag.analysis.diagnosis.simulation.schedule import Run, RunKind, Schedule

#: The simulation has converged if the advance of each chain and stream equals its advance in the previous iteration,
#: within this share of the iteration time.
_TOLERANCE = 1e-3
_MAX_ITERATIONS = 24
_MIN_ITERATIONS = 3
#: Index of the variable that is minus infinity, so that it delays nothing.
_NEVER = 0


class SteadyState(msgspec.Struct, frozen=True):
    """The steady state of a job.

    Attributes:
        step_ns: the mean step time.
        steps_ns: float64[steps], the time of each analysed step; their mean is `step_ns`.
        waited: float64[m], the ns that each collective waits for its peers; 0 for other ops.
    """

    step_ns: float
    steps_ns: Times
    waited: Times


def simulate(system: System, weights: Times) -> SteadyState:
    """Iterate with these weights until an iteration takes as long as the previous iteration.

    The iteration time is the largest advance of any chain's or stream's end since the previous iteration. The advance
    of the latest end alone would not be the iteration time: if the host runs far ahead, the device ends last for many
    iterations, although the host needs more time per iteration.
    `weights` is the result of `System.weights` for the scenario.
    """
    rows, times = system.rows(weights), system.measured.copy()
    ends = [[times[variable] for variable in system.lasts]]
    advance, pace = [0.0] * len(system.lasts), 0.0
    for iteration in range(1, _MAX_ITERATIONS + 1):
        for out, first, first_weight, second, second_weight in rows:
            a, b = times[first] + first_weight, times[second] + second_weight
            times[out] = a if a > b else b  # noqa: FURB136  # a call takes three times as long
        ends.append([times[variable] for variable in system.lasts])
        before, advance = advance, _differences(ends[-1], ends[-2])
        pace = max(advance, default=0.0)
        change = max(map(abs, _differences(advance, before)), default=0.0)
        if iteration >= _MIN_ITERATIONS and change <= _TOLERANCE * pace:
            break
    else:
        # Iterations that do not converge alternate, so their mean is the pace.
        half = _MAX_ITERATIONS // 2
        pace = max(_differences(ends[-1], ends[half]), default=0.0) / (_MAX_ITERATIONS - half)
    # The first step begins where the last step of the previous iteration ended. Steps do not end before earlier steps.
    step_ends = np.maximum.accumulate([times[variable] for variable in system.step_ends])
    steps_ns = np.diff(step_ends, prepend=step_ends[-1] - pace)
    return SteadyState(pace / system.graph.steps, steps_ns, system.waited(np.array(times)))


def _differences(now: list[float], before: list[float]) -> list[float]:
    return [a - b for a, b in zip(now, before, strict=True)]


class _Weight(IntEnum):
    """The durations that a weight sums: of a host node, of an op, or of the ops of a run that one host run launched."""

    NOTHING = auto()
    WORK = auto()
    """From the previous node to this one."""
    WORK_OF_RUN = auto()
    """From the last node before the run to this node."""
    DELAY = auto()
    """From the end of the op that a blocking call waits for to the end of the call."""
    GAP = auto()
    """From the end of an op's predecessor on the device to the op's start."""
    GAP_AND_DURATION = auto()
    """From the end of an op's predecessor on the device to the op's end."""
    LAUNCH = auto()
    """From the node before the host run that launched an op to the op's start."""
    LAUNCH_AND_DURATION = auto()
    """From the node before the host run that launched an op to the op's end."""
    OPS_OF_RUN = auto()
    """From the op before a device run to the end of the run's last op."""
    LAUNCHED_OF_RUN = auto()
    """From the node before a host run to the end of the last op of a device run that it launched into."""
    TRANSFER = auto()


#: Variable, kind of weight, and the node or op of the weight.
_Term = tuple[int, _Weight, int]


class System:
    """A graph compiled for simulation with any scenario.

    Variable 0 is minus infinity. Variable i + 1 is the time of the last node of run i, or the start of a collective if
    run i begins a collective. The remaining variables are the predecessors of each chain's first run, and the start of
    the last participant of each collective.

    Attributes:
        graph: the graph.
        measured: the recorded value of each variable, one iteration earlier.
        lasts: the variables of the last nodes of chains and of the last ops of streams.
        step_ends: the variables of the nodes or ops at which steps end.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._schedule = schedule = Schedule(graph)
        self.measured = [-np.inf, *(schedule.reached(run) - graph.length_ns for run in schedule.runs)]
        # Assignment i sets variable `_out[i]` to the larger of two terms: variable `_first[i]` or `_second[i]` plus a
        # weight. `_uses` has for each kind of weight its terms, numbered 2 i and 2 i + 1, and their nodes.
        self._out: list[int] = []
        self._first: list[int] = []
        self._second: list[int] = []
        self._uses: defaultdict[_Weight, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._begins: dict[int, int] = {}  # first host run of a chain → variable of its predecessor (`_begin`)
        self._arrivals: dict[bytes, int] = {}  # bytes of a collective's `peers` → variable of the last arrival
        self._collectives: list[tuple[int, int, int]] = []  # (op, variable of its start, of the last arrival)
        self._launchers = self._find_launchers()
        for index, run in enumerate(schedule.runs):
            self._add_run(index, run)
        self._slots = {weight: (np.array(slots), np.array(nodes)) for weight, (slots, nodes) in self._uses.items()}
        self.lasts = [*map(self._node, schedule.last_nodes.tolist()), *map(self._op, schedule.last_ops.tolist())]
        ends, on_device = schedule.step_ends
        self.step_ends = list(map(self._op if on_device else self._node, ends.tolist()))

    def rows(self, weights: Times) -> list[tuple[int, int, float, int, float]]:
        """Return an iteration's assignments in order: variable = max(variable + weight, variable + weight)."""
        first, second = weights.reshape(-1, 2).T.tolist()
        return list(zip(self._out, self._first, first, self._second, second, strict=True))

    def weights(self, scenario: Scenario) -> Times:
        """Return float64[2 * rows], ns: the weights of all assignments in this scenario."""
        host, device = self.graph.host, self.graph.device
        work, cost = scenario.busy + scenario.waiting, scenario.gap + scenario.duration
        work_of_run = _sums_within(work, self._schedule.first_nodes)
        ops_of_run = _sums_within(cost, self._schedule.first_ops)
        work_of_run[self._blocks] = 0.0  # launches at a blocking call's node are measured from this node (`_begin`)
        launch = work_of_run[device.launch] + scenario.latency
        ops, first, last = self._launched
        ready = (launch - scenario.gap - (ops_of_run - cost))[ops]  # r[i] - C[i - 1] in the module's docstring
        values = {
            _Weight.WORK: work,
            _Weight.WORK_OF_RUN: work_of_run,
            _Weight.DELAY: np.where(scenario.blocking, host.block_delay, -np.inf),
            _Weight.GAP: scenario.gap,
            _Weight.GAP_AND_DURATION: cost,
            _Weight.LAUNCH: launch,
            _Weight.LAUNCH_AND_DURATION: launch + scenario.duration,
            _Weight.OPS_OF_RUN: ops_of_run,
            _Weight.LAUNCHED_OF_RUN: np.maximum.reduceat(ready, first) + ops_of_run[last] if len(ops) else ready,
            _Weight.TRANSFER: scenario.transfer,
        }
        weights = np.zeros(2 * len(self._out))
        for weight, (slots, nodes) in self._slots.items():
            weights[slots] = values[weight][nodes]
        return weights

    def waited(self, times: Times) -> Times:
        """Return float64[m], ns: the wait of each collective for its peers; 0 for other ops."""
        waited = np.zeros(len(self.graph.device.start))
        ops, start, last = np.array(self._collectives, np.int64).reshape(-1, 3).T
        waited[ops] = np.maximum(times[last] - times[start], 0.0)
        return waited

    def _find_launchers(self) -> dict[int, list[tuple[int, int]]]:
        """Return device run → the host runs that launch into it, each with the position of the pair in `_launched`.

        `_launched` is (the launched ops, those of a pair together; index of each pair's first op in them; last op of
        each pair's device run). `_blocks` has the nodes of blocking calls.
        """
        runs, run_of, launch = self._schedule.runs, self._schedule.run_of, self.graph.device.launch
        kind = np.array([run.kind for run in runs], np.int64)
        self._blocks = np.flatnonzero(kind[run_of.node] == RunKind.HOST_BLOCK)
        ops = np.flatnonzero((kind[run_of.end] == RunKind.DEVICE_RUN) & (launch != NONE))
        pair = run_of.end[ops] * len(runs) + run_of.node[launch[ops]]
        order = np.argsort(pair, kind="stable")
        ops, pair = ops[order], pair[order]
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        device_runs, host_runs = np.divmod(pair[first], len(runs))
        last = np.array([runs[index].after - 1 for index in device_runs.tolist()], np.int64)
        self._launched = (ops, first, last)
        launchers: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for position, (device_run, host_run) in enumerate(zip(device_runs.tolist(), host_runs.tolist(), strict=True)):
            launchers[device_run].append((host_run, position))
        return launchers

    def _add_run(self, index: int, run: Run) -> None:
        """Append the equation of a run's last node; variable `index` + 1 is the time of that node."""
        first, last = run.first, run.after - 1
        if run.kind == RunKind.HOST_RUN:
            if run.before >= first:  # the predecessor is of the previous iteration (see `_begin`)
                self._add(self._begin(index), [(self._node(run.before), _Weight.NOTHING, 0)])
            self._add(index + 1, [(self._node(run.before), _Weight.WORK_OF_RUN, last)])
        elif run.kind == RunKind.HOST_BLOCK:
            waited = self._op(int(self.graph.host.block_on[first]))
            self._add(index + 1, [(self._node(run.before), _Weight.WORK, first), (waited, _Weight.DELAY, first)])
        elif run.kind == RunKind.DEVICE_RUN:
            launched = [(self._begin(host), _Weight.LAUNCHED_OF_RUN, pair) for host, pair in self._launchers[index]]
            self._add(index + 1, [(self._op(run.before), _Weight.OPS_OF_RUN, last), *launched])
        elif run.kind == RunKind.COLLECTIVE_END:
            self._add(index + 1, [(self._arrival(first), _Weight.TRANSFER, first)])
        else:
            to_end = run.kind == RunKind.DEVICE_WAIT
            gap = _Weight.GAP_AND_DURATION if to_end else _Weight.GAP
            terms = [(self._op(op), gap, first) for op in (run.before, *self._schedule.awaited_ops(run))]
            launch = int(self.graph.device.launch[first])
            if launch != NONE:
                weight = _Weight.LAUNCH_AND_DURATION if to_end else _Weight.LAUNCH
                terms.append((self._begin(int(self._schedule.run_of.node[launch])), weight, first))
            self._add(index + 1, terms)

    def _add(self, out: int, terms: list[_Term]) -> None:
        """Append x = max(terms) for the variable x = `out`, which may itself appear only as the first term."""
        first, *others = terms
        for other in others or [(_NEVER, _Weight.NOTHING, 0)]:
            for variables, slot, (variable, weight, node) in (
                (self._first, 2 * len(self._out), first),
                (self._second, 2 * len(self._out) + 1, other),
            ):
                variables.append(variable)
                if weight is not _Weight.NOTHING:
                    self._uses[weight][0].append(slot)
                    self._uses[weight][1].append(node)
            self._out.append(out)
            first = (out, _Weight.NOTHING, 0)

    def _node(self, node: int) -> int:
        """Return the variable of a host node that is the last of its run."""
        return int(self._schedule.run_of.node[node]) + 1

    def _op(self, op: int) -> int:
        """Return the variable of the end of an op that is the last of its run."""
        return int(self._schedule.run_of.end[op]) + 1

    def _begin(self, index: int) -> int:
        """Return the variable from which launches in a run are measured: the run's predecessor, or a blocking call."""
        run = self._schedule.runs[index]
        if run.kind == RunKind.HOST_BLOCK:
            return index + 1
        if run.before < run.first:
            return self._node(run.before)
        # The predecessor is the chain's last node in the previous iteration. The predecessor's time needs a separate
        # variable, because the variable of the chain's end may change before the device run of this launch uses it.
        if index not in self._begins:
            self._begins[index] = len(self.measured)
            self.measured.append(float(self.graph.host.time[run.before]) - 2 * self.graph.length_ns)  # two iterations
        return self._begins[index]

    def _arrival(self, op: int) -> int:
        """Return the variable of the last arrival at a collective."""
        peers, start = self.graph.device.peers[op], self._schedule.run_of.start
        key = peers.tobytes()
        if key not in self._arrivals:
            starts = [start[peer] + 1 for peer in peers.tolist()]
            self._arrivals[key] = len(self.measured)
            self.measured.append(max(self.measured[variable] for variable in starts))
            self._add(self._arrivals[key], [(variable, _Weight.NOTHING, 0) for variable in starts])
        self._collectives.append((op, start[op] + 1, self._arrivals[key]))
        return self._arrivals[key]


def _sums_within(values: Times, first: Index) -> Times:
    """Return for each value the sum from its run's first value, at index `first`, up to and including the value."""
    before = np.zeros(len(values) + 1)
    np.cumsum(values, out=before[1:])
    return before[1:] - before[first]
