"""Runs a replay graph: in runs of nodes that need nothing from elsewhere, so that NumPy does each run at once.

Within a run of launches the host only adds up. Within a run of ops of one stream, with r[j] the time at which op j was
launched and c[j] = delay + duration,

    end[j] = max(r[j], end[j - 1]) + c[j]   is   end[j] = C[j] + max(end[before], max over i <= j of (r[i] - C[i - 1]))

where C are the running sums of c. Runs are cut where a node is waited for from elsewhere or waits itself, and done in
the order in which they were measured to happen, in which everything that a run needs came before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.diagnosis.replay.graph import NONE, Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.float64]

_HOST_RUN, _HOST_BLOCK, _DEVICE_RUN, _DEVICE_WAIT, _COLLECTIVE_START, _COLLECTIVE_END = range(6)

#: A turn that differs from the one before by less than this share has settled.
_SETTLED = 1e-3
_MOST_TURNS = 24
_FEWEST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """What an edit may change. Shapes as in the graph: host nodes n, device ops m; times in ns.

    Attributes:
        work: float64[n], host work before each node.
        blocking: bool[n], whether the node still waits for its op.
        duration: float64[m], of ops that are no matched collectives.
        transfer: float64[m], of matched collectives from last arrival to end; NaN elsewhere.
        joined: False lets every collective go without waiting for its peers.
    """

    work: Times
    blocking: NDArray[np.bool_]
    duration: Times
    transfer: Times
    joined: bool = True


class Plan:
    """The order in which the runs of one graph are done; worked out once and used for every edit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.runs = _runs(graph)


def unchanged(graph: Graph) -> Costs:
    """The costs as measured, the profiler's own included."""
    host, device = graph.host, graph.device
    return Costs(
        work=host.busy + host.input + host.silent,
        blocking=host.block_on != NONE,
        duration=device.end - device.start,
        transfer=device.transfer,
    )


def simulate(plan: Plan, costs: Costs) -> float:
    """Step time in ns at which the job settles with these costs."""
    graph = plan.graph
    state = _State(graph, costs)
    finish = state.finished()
    this_turn = turn_before = 0.0
    for turn in range(_MOST_TURNS):
        state.turn(plan.runs)
        finished = state.finished()
        this_turn, finish = finished - finish, finished
        if turn + 1 >= _FEWEST_TURNS and abs(this_turn - turn_before) <= _SETTLED * abs(this_turn):
            break
        turn_before = this_turn
    return float(this_turn) / max(graph.steps, 1)


class _State:
    """Times of all nodes, from one turn to the next."""

    def __init__(self, graph: Graph, costs: Costs) -> None:
        self.graph, self.costs = graph, costs
        # Before the first turn stands what was measured, one turn earlier.
        self.time = graph.host.time - graph.length_ns
        self.start = graph.device.start - graph.length_ns
        self.end = graph.device.end - graph.length_ns
        self.work_before = np.concatenate([[0.0], np.cumsum(costs.work)])
        self.cost = graph.device.delay + costs.duration
        self.cost_before = np.concatenate([[0.0], np.cumsum(self.cost)])
        self.launched = graph.device.launch != NONE

    def finished(self) -> float:
        """When the last node was reached."""
        return float(max(self.end.max(initial=-np.inf), self.time.max(initial=-np.inf)))

    def turn(self, runs: list[tuple[int, int, int, int]]) -> None:
        """Go through all runs once."""
        time, work = self.time, self.work_before
        for kind, a, b, before in runs:
            if kind == _HOST_RUN:
                time[a:b] = time[before] + (work[a + 1 : b + 1] - work[a])
            elif kind == _HOST_BLOCK:
                self._block(a, before)
            elif kind == _DEVICE_RUN:
                self._device_run(a, b, before)
            elif kind == _COLLECTIVE_END:
                peers = self.graph.device.peers[a] if self.costs.joined else (a,)
                self.end[a] = max(self.start[p] for p in peers) + self.costs.transfer[a]
            else:
                self._begin(a, before)
                if kind == _DEVICE_WAIT:
                    self.end[a] = self.start[a] + self.costs.duration[a]

    def _block(self, a: int, before: int) -> None:
        host = self.graph.host
        reached = self.time[before] + self.costs.work[a]
        if self.costs.blocking[a]:
            reached = max(reached, self.end[host.block_on[a]] + host.block_delay[a])
        self.time[a] = reached

    def _device_run(self, a: int, b: int, before: int) -> None:
        device = self.graph.device
        launched_at = self.time[device.launch[a:b]] + device.launch_lead[a:b]
        ready = np.where(self.launched[a:b], launched_at, -np.inf)
        through = self.cost_before[a + 1 : b + 1] - self.cost_before[a]
        latest = np.maximum.accumulate(ready - (through - self.cost[a:b]))
        self.end[a:b] = through + np.maximum(latest, self.end[before])

    def _begin(self, a: int, before: int) -> None:
        device = self.graph.device
        ready = self.end[before]
        if self.launched[a]:
            ready = max(ready, self.time[device.launch[a]] + device.launch_lead[a])
        for waited in (device.wait_a[a], device.wait_b[a]):
            if waited != NONE:
                ready = max(ready, self.end[waited])
        self.start[a] = ready + device.delay[a]


def _runs(graph: Graph) -> list[tuple[int, int, int, int]]:
    """(kind, first, after last, node before) of every run, in measured order."""
    host, device = graph.host, graph.device
    runs: list[tuple[float, int, tuple[int, int, int, int]]] = []
    for first, after in graph.chains:
        blocks = first + np.flatnonzero(host.block_on[first:after] != NONE)
        begin = first
        for block in [*blocks.tolist(), after]:
            if block > begin:
                before = begin - 1 if begin > first else after - 1
                # A run needs nothing but the node before it, so it can be done as early as that.
                key = host.time[before] if begin > first else -np.inf
                runs.append((float(key), 1, (_HOST_RUN, begin, block, before)))
            if block < after:
                before = block - 1 if block > first else after - 1
                runs.append((float(host.time[block]), 0, (_HOST_BLOCK, block, block + 1, before)))
            begin = block + 1
    wanted = np.zeros(len(device.start), np.bool_)
    for column in (host.block_on, device.wait_a, device.wait_b):
        wanted[column[column != NONE]] = True
    special = (device.wait_a != NONE) | ~np.isnan(device.transfer)
    for first, after in graph.streams:
        begin = first
        cuts = first + np.flatnonzero(special[first:after] | wanted[first:after])
        for cut in [*cuts.tolist(), after]:
            stop = cut if cut == after or special[cut] else cut + 1
            if stop > begin:
                before = begin - 1 if begin > first else after - 1
                runs.append((float(device.end[stop - 1]), 3, (_DEVICE_RUN, begin, stop, before)))
                begin = stop
            if cut < after and special[cut]:
                before = cut - 1 if cut > first else after - 1
                if np.isnan(device.transfer[cut]):
                    runs.append((float(device.end[cut]), 3, (_DEVICE_WAIT, cut, cut + 1, before)))
                else:
                    runs.append((float(device.start[cut]), 2, (_COLLECTIVE_START, cut, cut + 1, before)))
                    runs.append((float(device.end[cut]), 3, (_COLLECTIVE_END, cut, cut + 1, before)))
                begin = cut + 1
    runs.sort(key=lambda run: (run[0], run[1], run[2][1]))
    return [run for _, _, run in runs]
