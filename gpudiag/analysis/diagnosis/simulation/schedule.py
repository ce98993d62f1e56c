"""The order in which a replay graph is run: its nodes in runs that NumPy can do at once, each after what it needs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import FEW_OPS
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph
from gpudiag.intervals import distinct


class Kind(IntEnum):
    """What a run is."""

    HOST_RUN = 0
    """Host nodes that wait for nothing but the one before."""
    HOST_BLOCK = 1
    """One host node that waits for an op."""
    DEVICE_RUN = 2
    """Ops of one stream that wait for nothing but their launches and the op before."""
    DEVICE_WAIT = 3
    """One op that waits for ops of other streams."""
    COLLECTIVE_START = 4
    COLLECTIVE_END = 5


_ON_HOST = frozenset({Kind.HOST_RUN, Kind.HOST_BLOCK})


class Run(NamedTuple):
    """Nodes or ops [first, after) of one chain or stream; `before` is the one that they follow.

    The first run of a chain or stream follows the last of the turn before.
    """

    kind: Kind
    first: int
    after: int
    before: int


class Schedule:
    """The order of the runs of one graph; worked out once and used for every edit.

    Attributes:
        graph: the graph.
        runs: the runs in an order in which each comes after all that it needs of the same turn. Where broken input
            makes needs go in a circle, the earliest as measured goes first, and takes what it misses from the turn
            before.
        last_nodes, last_ops: the last host node of each chain and the last op of each stream.
        step_ends: int64[steps] and whether these are ops: the last of each step on the stream of most ops, or the last
            host nodes of the longest chain. Each is the last of its run.
        first_nodes, first_ops: int64[n] and int64[m], the first of the run that each host node and each op is in.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.last_nodes = np.array([after - 1 for first, after in graph.chains if after > first], np.int64)
        self.last_ops = np.array([after - 1 for first, after in graph.streams if after > first], np.int64)
        self.step_ends = _step_ends(graph)
        ends, on_device = self.step_ends
        runs = [
            *_host_runs(graph, ends[:0] if on_device else ends),
            *_device_runs(graph, ends if on_device else ends[:0]),
        ]
        self.runs = _in_order(graph, runs)
        self.first_nodes, self.first_ops = np.arange(len(graph.host.time)), np.arange(len(graph.device.start))
        for run in runs:
            (self.first_nodes if run.kind in _ON_HOST else self.first_ops)[run.first : run.after] = run.first

    @cached_property
    def places(self) -> Places:
        """Where in `runs` each node is."""
        return places_of(self.graph, self.runs)


def _step_ends(graph: Graph) -> tuple[NDArray[np.int64], bool]:
    steps = np.arange(graph.steps)
    first, after = max(graph.streams, key=lambda span: span[1] - span[0], default=(0, 0))
    of_ops = np.maximum.accumulate(graph.device.step[first:after])
    if len(of_ops) and len(distinct(of_ops[of_ops < len(steps)])) == len(steps) and len(of_ops) > FEW_OPS * len(steps):
        return first + np.searchsorted(of_ops, steps, side="right") - 1, True
    first, after = max(graph.chains, key=lambda span: span[1] - span[0])
    of_nodes = np.maximum.accumulate(graph.host.step[first:after])
    return first + np.maximum(np.searchsorted(of_nodes, steps, side="right") - 1, 0), False


def _host_runs(graph: Graph, ends: NDArray[np.int64]) -> Iterator[Run]:
    """Cut where a node waits, and behind those that end a step."""
    blocked = graph.host.block_on != NONE
    cut = blocked.copy()
    cut[ends] = True
    for first, after in graph.chains:
        begin = first
        for at in [*(first + np.flatnonzero(cut[first:after])).tolist(), after]:
            waits = at < after and blocked[at]
            stop = at if waits or at == after else at + 1
            if stop > begin:
                yield Run(Kind.HOST_RUN, begin, stop, begin - 1 if begin > first else after - 1)
            if waits:
                yield Run(Kind.HOST_BLOCK, at, at + 1, at - 1 if at > first else after - 1)
            begin = at + 1


def _device_runs(graph: Graph, ends: NDArray[np.int64]) -> Iterator[Run]:
    """Cut where an op waits or is a collective, and behind those that are waited for or end a step."""
    host, device = graph.host, graph.device
    wanted = np.zeros(len(device.start), np.bool_)
    wanted[ends] = True
    for column in (host.block_on, device.wait_a, device.wait_b):
        wanted[column[column != NONE]] = True
    waits = (device.wait_a != NONE) | (device.wait_b != NONE)
    joined = ~np.isnan(device.transfer)
    special = waits | joined
    for first, after in graph.streams:
        begin = first
        for cut in [*(first + np.flatnonzero(special[first:after] | wanted[first:after])).tolist(), after]:
            stop = cut if cut == after or special[cut] else cut + 1
            if stop > begin:
                yield Run(Kind.DEVICE_RUN, begin, stop, begin - 1 if begin > first else after - 1)
                begin = stop
            if cut < after and special[cut]:
                before = cut - 1 if cut > first else after - 1
                if joined[cut]:
                    yield Run(Kind.COLLECTIVE_START, cut, cut + 1, before)
                    yield Run(Kind.COLLECTIVE_END, cut, cut + 1, before)
                else:
                    yield Run(Kind.DEVICE_WAIT, cut, cut + 1, before)
                begin = cut + 1


def _in_order(graph: Graph, runs: list[Run]) -> list[Run]:
    """The runs after all that they need, else in the order in which they were measured to end."""
    host, device = graph.host, graph.device
    measured = [
        float(host.time[run.after - 1])
        if run.kind in _ON_HOST
        else float((device.start if run.kind == Kind.COLLECTIVE_START else device.end)[run.after - 1])
        for run in runs
    ]
    needs = _needs(graph, runs)
    needed_by: list[list[int]] = [[] for _ in runs]
    missing = [len(of_one) for of_one in needs]
    for index, of_one in enumerate(needs):
        for need in of_one:
            needed_by[need].append(index)
    ready = [(measured[index], index) for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    stuck = sorted((measured[index], index) for index, count in enumerate(missing) if count)
    stuck.reverse()
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
                heapq.heappush(ready, (measured[follower], follower))
    return order


class Places(NamedTuple):
    """Where among runs each node is.

    Attributes:
        node: int64[n], the run that each host node is in.
        end: int64[m], the run that each op ends in.
        start: the run in which each collective's op starts.
    """

    node: NDArray[np.int64]
    end: NDArray[np.int64]
    start: dict[int, int]


def places_of(graph: Graph, runs: Sequence[Run]) -> Places:
    """The places of a graph's nodes in these runs."""
    node = np.full(len(graph.host.time), NONE, np.int64)
    end = np.full(len(graph.device.start), NONE, np.int64)
    start: dict[int, int] = {}
    for index, run in enumerate(runs):
        if run.kind in _ON_HOST:
            node[run.first : run.after] = index
        elif run.kind == Kind.COLLECTIVE_START:
            start[run.first] = index
        else:
            end[run.first : run.after] = index
    return Places(node, end, start)


def _needs(graph: Graph, runs: list[Run]) -> list[set[int]]:
    """For each run the runs that must be done before it in the same turn."""
    device = graph.device
    run_of_node, run_of_end, run_of_start = places_of(graph, runs)
    needs: list[set[int]] = [set() for _ in runs]
    for index, run in enumerate(runs):
        if run.kind == Kind.COLLECTIVE_END:
            needs[index].update(run_of_start[int(peer)] for peer in device.peers[run.first])
            continue
        if run.before < run.first:
            needs[index].add(int((run_of_node if run.kind in _ON_HOST else run_of_end)[run.before]))
        if run.kind not in _ON_HOST:
            launches = device.launch[run.first : run.after]
            needs[index].update(set(run_of_node[launches[launches != NONE]].tolist()))
        for op in _waits_for(graph, run):
            other = int(run_of_end[op])
            if not _of_the_turn_before(graph, run, op):
                needs[index].add(other)
            elif other != index:
                # What is wanted of the turn before must not be done anew until it was taken.
                needs[other].add(index)
    return needs


def _waits_for(graph: Graph, run: Run) -> list[int]:
    """The ops whose end a run waits for, besides those before it in its stream."""
    if run.kind == Kind.HOST_BLOCK:
        return [int(graph.host.block_on[run.first])]
    if run.kind == Kind.HOST_RUN:
        return []
    return [int(op) for op in (graph.device.wait_a[run.first], graph.device.wait_b[run.first]) if op != NONE]


def _of_the_turn_before(graph: Graph, run: Run, op: int) -> bool:
    """Whether what a run waits for comes after it in the body: launched later or, launched at once, ended later."""
    host, device = graph.host, graph.device
    on_host = run.kind == Kind.HOST_BLOCK
    launched = run.first if on_host else int(device.launch[run.first])
    began = host.time[run.first] if on_host else device.start[run.first]
    other = int(device.launch[op])
    if NONE in (launched, other) or launched == other:
        return bool(device.end[op] > began)
    return other > launched
