"""Divide the graph's nodes into runs that NumPy computes at once, and order each run after the runs that it needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import FEW_OPS
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, Index
from gpudiag.intervals import distinct


class RunKind(IntEnum):
    """The kind of a run: whether its nodes are on the host or on a device, and what they wait for."""

    HOST_RUN = 0
    """Host nodes that wait only for the previous node."""
    HOST_BLOCK = 1
    """A host node that waits for an op."""
    DEVICE_RUN = 2
    """Ops of one stream that wait only for their launches and the previous op."""
    DEVICE_WAIT = 3
    """An op that waits for ops of other streams."""
    COLLECTIVE_START = 4
    COLLECTIVE_END = 5


_ON_HOST = frozenset({RunKind.HOST_RUN, RunKind.HOST_BLOCK})


class Run(NamedTuple):
    """Nodes or ops [first, after) of one chain or stream; `before` is the node or op that they follow.

    The first run of a chain or stream follows the chain's or stream's last node or op of the previous iteration.
    """

    kind: RunKind
    first: int
    after: int
    before: int


class RunIndex(NamedTuple):
    """The run that contains each node.

    Attributes:
        node: int64[n], the run of each host node.
        end: int64[m], the run in which each op ends.
        start: op of a collective → the run in which it starts.
    """

    node: Index
    end: Index
    start: dict[int, int]


class Schedule:
    """The order of the runs of one graph, used for every scenario.

    Attributes:
        graph: the graph.
        runs: the runs in topological order of one iteration. If damaged input makes dependencies circular, the run that
            was recorded earliest comes first, and uses the times of the previous iteration.
        run_of: the run of each node.
        last_nodes, last_ops: the last host node of each chain and the last op of each stream.
        step_ends: (int64[steps], whether they are ops): the last op of each step on the stream with most ops, or else
            the last host node of each step on the longest chain. Each such op or node is the last of its run.
        first_nodes, first_ops: int64[n] and int64[m], the first node or op in the run of each host node and each op.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.last_nodes = np.array([after - 1 for first, after in graph.chains if after > first], np.int64)
        self.last_ops = np.array([after - 1 for first, after in graph.streams if after > first], np.int64)
        self.step_ends = _step_ends(graph)
        ends, on_device = self.step_ends
        host_runs = _host_runs(graph, ends[:0] if on_device else ends)
        self.runs = self._in_order([*host_runs, *_device_runs(graph, ends if on_device else ends[:0])])
        self.run_of = index_runs(graph, self.runs)
        self.first_nodes, self.first_ops = np.arange(len(graph.host.time)), np.arange(len(graph.device.start))
        for run in self.runs:
            (self.first_nodes if run.kind in _ON_HOST else self.first_ops)[run.first : run.after] = run.first

    def reached(self, run: Run) -> float:
        """Return the recorded time, in ns, at which a run's last node was reached, or its collective started."""
        host, device = self.graph.host, self.graph.device
        if run.kind in _ON_HOST:
            return float(host.time[run.after - 1])
        return float((device.start if run.kind == RunKind.COLLECTIVE_START else device.end)[run.after - 1])

    def awaited_ops(self, run: Run) -> list[int]:
        """Return the ops whose end a run waits for, besides the previous op of its stream."""
        host, device = self.graph.host, self.graph.device
        if run.kind == RunKind.HOST_BLOCK:
            return [int(host.block_on[run.first])]
        if run.kind == RunKind.HOST_RUN:
            return []
        return [int(op) for op in (device.wait_a[run.first], device.wait_b[run.first]) if op != NONE]

    def _in_order(self, runs: Sequence[Run]) -> list[Run]:
        """Return the runs in topological order; of several possible runs, the run that was recorded first."""
        recorded = [self.reached(run) for run in runs]
        needed_by: list[list[int]] = [[] for _ in runs]
        missing = [0] * len(runs)
        for index, needs in enumerate(self._needs(runs)):
            missing[index] = len(needs)
            for need in needs:
                needed_by[need].append(index)
        ready = [(recorded[index], index) for index, count in enumerate(missing) if count == 0]
        heapq.heapify(ready)
        # Runs that wait for others, the earliest last. They are taken only if dependencies are circular.
        stuck = sorted(((recorded[index], index) for index, count in enumerate(missing) if count), reverse=True)
        done = np.zeros(len(runs), np.bool_)
        order: list[Run] = []
        while ready or stuck:
            _, index = heapq.heappop(ready) if ready else stuck.pop()
            if done[index]:
                continue
            done[index] = True
            order.append(runs[index])
            for follower in needed_by[index]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready, (recorded[follower], follower))
        return order

    def _needs(self, runs: Sequence[Run]) -> list[set[int]]:
        """Return for each run the runs that must be complete before that run in the same iteration."""
        device = self.graph.device
        run_of = index_runs(self.graph, runs)
        needs: list[set[int]] = [set() for _ in runs]
        for index, run in enumerate(runs):
            if run.kind == RunKind.COLLECTIVE_END:
                needs[index].update(run_of.start[int(peer)] for peer in device.peers[run.first])
                continue
            if run.before < run.first:
                needs[index].add(int((run_of.node if run.kind in _ON_HOST else run_of.end)[run.before]))
            if run.kind not in _ON_HOST:
                launches = device.launch[run.first : run.after]
                needs[index].update(set(run_of.node[launches[launches != NONE]].tolist()))
            for op in self.awaited_ops(run):
                awaited = int(run_of.end[op])
                if not self._is_of_iteration_before(run, op):
                    needs[index].add(awaited)
                elif awaited != index:
                    # A value of the previous iteration must not be overwritten before it is used.
                    needs[awaited].add(index)
        return needs

    def _is_of_iteration_before(self, run: Run, op: int) -> bool:
        """Return whether a run waits for an op's end in the previous iteration, because the op comes after the run."""
        host, device = self.graph.host, self.graph.device
        on_host = run.kind == RunKind.HOST_BLOCK
        launched = run.first if on_host else int(device.launch[run.first])
        began = host.time[run.first] if on_host else device.start[run.first]
        awaited_launch = int(device.launch[op])
        if NONE in (launched, awaited_launch) or launched == awaited_launch:  # launches show no order, times do
            return bool(device.end[op] > began)
        return awaited_launch > launched


def _step_ends(graph: Graph) -> tuple[Index, bool]:
    """Return `Schedule.step_ends`: ops, if the longest stream has enough ops and some in every step, else host nodes.

    `maximum.accumulate` makes step numbers ascend, as the bisection for the last op or node of each step needs.
    """
    steps = np.arange(graph.steps)
    first, after = max(graph.streams, key=lambda span: span[1] - span[0], default=(0, 0))
    op_steps = np.maximum.accumulate(graph.device.step[first:after])
    ended = len(distinct(op_steps[op_steps < len(steps)])) if len(op_steps) else 0
    if ended and ended == len(steps) and len(op_steps) > FEW_OPS * len(steps):
        return first + np.searchsorted(op_steps, steps, side="right") - 1, True
    first, after = max(graph.chains, key=lambda span: span[1] - span[0])
    node_steps = np.maximum.accumulate(graph.host.step[first:after])
    return first + np.maximum(np.searchsorted(node_steps, steps, side="right") - 1, 0), False


def _host_runs(graph: Graph, ends: Index) -> Iterator[Run]:
    """Yield the runs of chains, cut before and after nodes that wait, and after the nodes `ends`, which end a step."""
    blocked = graph.host.block_on != NONE
    cut = blocked.copy()
    cut[ends] = True
    for first, after in graph.chains:
        begin = first
        for at in [*(first + np.flatnonzero(cut[first:after])).tolist(), after]:
            waits = at < after and blocked[at]
            stop = at if waits or at == after else at + 1
            if stop > begin:
                yield Run(RunKind.HOST_RUN, begin, stop, begin - 1 if begin > first else after - 1)
            if waits:
                yield Run(RunKind.HOST_BLOCK, at, at + 1, at - 1 if at > first else after - 1)
            begin = at + 1


def _device_runs(graph: Graph, ends: Index) -> Iterator[Run]:
    """Yield the runs of streams, cut around ops that wait or are collectives, and after awaited ops and step `ends`."""
    host, device = graph.host, graph.device
    awaited = np.zeros(len(device.start), np.bool_)
    awaited[ends] = True
    for column in (host.block_on, device.wait_a, device.wait_b):
        awaited[column[column != NONE]] = True
    matched: NDArray[np.bool_] = ~np.isnan(device.transfer)
    alone = (device.wait_a != NONE) | (device.wait_b != NONE) | matched
    for first, after in graph.streams:
        begin = first
        for cut in [*(first + np.flatnonzero(alone[first:after] | awaited[first:after])).tolist(), after]:
            stop = cut if cut == after or alone[cut] else cut + 1
            if stop > begin:
                yield Run(RunKind.DEVICE_RUN, begin, stop, begin - 1 if begin > first else after - 1)
                begin = stop
            if cut < after and alone[cut]:
                before = cut - 1 if cut > first else after - 1
                if matched[cut]:
                    yield Run(RunKind.COLLECTIVE_START, cut, cut + 1, before)
                    yield Run(RunKind.COLLECTIVE_END, cut, cut + 1, before)
                else:
                    yield Run(RunKind.DEVICE_WAIT, cut, cut + 1, before)
                begin = cut + 1


def index_runs(graph: Graph, runs: Sequence[Run]) -> RunIndex:
    """Return the index of the run that contains each host node and each op."""
    node = np.full(len(graph.host.time), NONE, np.int64)
    end = np.full(len(graph.device.start), NONE, np.int64)
    start: dict[int, int] = {}
    for index, run in enumerate(runs):
        if run.kind in _ON_HOST:
            node[run.first : run.after] = index
        elif run.kind == RunKind.COLLECTIVE_START:
            start[run.first] = index
        else:
            end[run.first : run.after] = index
    return RunIndex(node, end, start)
