"""Runs a replay graph: in runs of nodes that need nothing from elsewhere, so that NumPy does each run at once.

Within a run of launches the host only adds up. Within a run of ops of one stream, with r[j] the time at which op j was
launched less its gap, and c[j] = gap + duration,

    end[j] = max(r[j], end[j - 1]) + c[j]   is   end[j] = C[j] + max(end[before], max over i <= j of (r[i] - C[i - 1]))

where C are the running sums of c. Runs are cut where a node is waited for from elsewhere or waits itself, and done in
an order in which everything that a run needs came before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.diagnosis.replay.graph import NONE
from gpudiag.diagnosis.replay.plan import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpudiag.diagnosis.replay.graph import Graph
    from gpudiag.diagnosis.replay.plan import Plan

    Times = NDArray[np.float64]

#: The job has settled when no chain or stream differs from the turn before by more than this share of the turn.
_SETTLED = 1e-3
_MOST_TURNS = 24
_FEWEST_TURNS = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """What an edit may change. Shapes as in the graph: host nodes n, device ops m; times in ns.

    Attributes:
        busy: float64[n], host work before each node.
        waiting: float64[n], what the host waited for data before each node.
        blocking: bool[n], whether the node still waits for its op.
        gap: float64[m], from the end of the work before each op to its earliest start.
        duration: float64[m], of ops that are no matched collectives.
        transfer: float64[m], of matched collectives from last arrival to end; NaN elsewhere.
        joined: False lets every collective go without waiting for its peers.
    """

    busy: Times
    waiting: Times
    blocking: NDArray[np.bool_]
    gap: Times
    duration: Times
    transfer: Times
    joined: bool = True

    def digest(self) -> int:
        """The same for equal costs: rules often ask for the same edit again, or for one that changes nothing."""
        columns = (self.busy, self.waiting, self.blocking, self.gap, self.duration, self.transfer)
        return hash((self.joined, *(column.tobytes() for column in columns)))


def unchanged(graph: Graph) -> Costs:
    """The costs as measured, the profiler's own included."""
    host, device = graph.host, graph.device
    return Costs(
        busy=host.busy,
        waiting=host.input + host.silent,
        blocking=host.block_on != NONE,
        gap=device.gap,
        duration=device.end - device.start,
        transfer=device.transfer,
    )


def simulate(plan: Plan, costs: Costs) -> float:
    """Step time in ns at which the job settles with these costs.

    What counts is how far the chain or stream that moves most gets on in a turn. When the last of all nodes is reached
    says less: a device that works off what a host far ahead has given it is the last for many turns, at its own pace.
    """
    return _settled(plan, costs)[1]


def waits(plan: Plan, costs: Costs) -> Times:
    """float64[m]: how long each op, once the job has settled, waits for its peers, in ns; 0 for all but collectives."""
    state, _ = _settled(plan, costs)
    return waited_for(plan.graph, state.start)


def waited_for(graph: Graph, start: Times) -> Times:
    """float64[m]: from the start of each collective to the last of its participants' starts; 0 for other ops."""
    waited = np.zeros(len(start))
    for op, peers in graph.device.peers.items():
        waited[op] = max(start[peers].max() - start[op], 0.0)
    return waited


def _settled(plan: Plan, costs: Costs) -> tuple[_State, float]:
    """The state after the last turn, and the step time."""
    state = _State(plan, costs)
    ends = [state.ends()]
    advance = np.zeros(len(ends[0]))
    for turn in range(1, _MOST_TURNS + 1):
        state.turn()
        ends.append(state.ends())
        before, advance = advance, ends[-1] - ends[-2]
        pace = float(advance.max(initial=0.0))
        if turn >= _FEWEST_TURNS and np.abs(advance - before).max(initial=0.0) <= _SETTLED * pace:
            break
    else:
        # Turns that differ for ever alternate; then their mean is the pace.
        half = _MOST_TURNS // 2
        pace = float((ends[-1] - ends[half]).max(initial=0.0)) / (_MOST_TURNS - half)
    return state, pace / max(plan.graph.steps, 1)


class _State:
    """Times of all nodes, from one turn to the next."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        graph = plan.graph
        self.plan, self.graph, self.costs = plan, graph, costs
        # Before the first turn stands what was measured, one turn earlier.
        self.time = graph.host.time - graph.length_ns
        self.start = graph.device.start - graph.length_ns
        self.end = graph.device.end - graph.length_ns
        self.work = costs.busy + costs.waiting
        self.work_before = np.concatenate([[0.0], np.cumsum(self.work)])
        self.cost = costs.gap + costs.duration
        self.cost_before = np.concatenate([[0.0], np.cumsum(self.cost)])
        self.launched = graph.device.launch != NONE

    def ends(self) -> Times:
        """When the last node of each chain and stream was reached."""
        return np.concatenate([self.time[self.plan.last_nodes], self.end[self.plan.last_ops]])

    def turn(self) -> None:
        """Go through all runs once."""
        time, work = self.time, self.work_before
        for kind, a, b, before in self.plan.runs:
            if kind == Kind.HOST_RUN:
                time[a:b] = time[before] + (work[a + 1 : b + 1] - work[a])
            elif kind == Kind.HOST_BLOCK:
                self._block(a, before)
            elif kind == Kind.DEVICE_RUN:
                self._device_run(a, b, before)
            elif kind == Kind.COLLECTIVE_END:
                peers = self.graph.device.peers[a] if self.costs.joined else (a,)
                self.end[a] = max(self.start[p] for p in peers) + self.costs.transfer[a]
            else:
                self._begin(a, before)
                if kind == Kind.DEVICE_WAIT:
                    self.end[a] = self.start[a] + self.costs.duration[a]

    def _block(self, a: int, before: int) -> None:
        host = self.graph.host
        reached = self.time[before] + self.work[a]
        if self.costs.blocking[a]:
            reached = max(reached, self.end[host.block_on[a]] + host.block_delay[a])
        self.time[a] = reached

    def _device_run(self, a: int, b: int, before: int) -> None:
        device = self.graph.device
        launched_at = self.time[device.launch[a:b]] + device.latency[a:b]
        ready = np.where(self.launched[a:b], launched_at - self.costs.gap[a:b], -np.inf)
        through = self.cost_before[a + 1 : b + 1] - self.cost_before[a]
        latest = np.maximum.accumulate(ready - (through - self.cost[a:b]))
        self.end[a:b] = through + np.maximum(latest, self.end[before])

    def _begin(self, a: int, before: int) -> None:
        device = self.graph.device
        ready = self.end[before]
        for waited in (device.wait_a[a], device.wait_b[a]):
            if waited != NONE:
                ready = max(ready, self.end[waited])
        ready += self.costs.gap[a]
        if self.launched[a]:
            ready = max(ready, self.time[device.launch[a]] + device.latency[a])
        self.start[a] = ready
