"""Edits of the replay graph: what each cause costs, by taking only it away.

All gains are against the *corrected* replay, from which the profiler's own cost per recorded host event was taken out:
profiling slows the host, and what it costs is nobody's fault in the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpudiag.diagnosis.replay.build import build_graph
from gpudiag.diagnosis.replay.graph import Block
from gpudiag.diagnosis.replay.plan import Plan
from gpudiag.diagnosis.replay.simulate import Costs, simulate, unchanged
from gpudiag.diagnosis.replay.twins import Twins, find_twins
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gpudiag.diagnosis.replay.graph import Graph
    from gpudiag.model.timeline import Timeline

#: What the profiler adds to the host for each event that it records. Measured: 26.1 ms profiled against 14.5 ms for
#: 9,130 events (a step of many tiny kernels), and 67.1 against 57.1 ms for 8,110 (a late loader): 1.27 and 1.24 µs.
PROFILER_NS_PER_EVENT = 1270.0
#: Costs per event to choose from where the unprofiled step time says which is right.
_PER_EVENT_NS = (
    0.0,
    300.0,
    600.0,
    900.0,
    1100.0,
    PROFILER_NS_PER_EVENT,
    1500.0,
    1800.0,
    2200.0,
    2700.0,
    3300.0,
    4000.0,
)
#: At most this share of a stretch of host work is taken to be the profiler's.
_MOST_PROFILER_SHARE = 0.9

Part = Literal["input", "launch", "compute", "copy"]
PARTS: tuple[Part, ...] = ("input", "launch", "compute", "copy")


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much each rank's part of the step is above what its peers need, in ns per step: rank → ns."""

    part: Part
    by_rank: dict[int, float]


class WhatIf:
    """One job's replay, ready to be edited. Every gain is in milliseconds per step and never negative.

    Args:
        graph: the replay graph.
        timeline: what the graph was built from.
        per_event_ns: the profiler's cost per recorded host event.
    """

    def __init__(self, graph: Graph, timeline: Timeline, per_event_ns: float = PROFILER_NS_PER_EVENT) -> None:
        self.graph = graph
        self.timeline = timeline
        self.plan = Plan(graph)
        self.measured = unchanged(graph)
        self.per_event_ns = per_event_ns
        host = graph.host
        profiler = np.minimum(per_event_ns * host.events + host.profiler, _MOST_PROFILER_SHARE * host.busy)
        self.busy = host.busy - profiler
        self.corrected = replace(self.measured, busy=self.busy)

    @staticmethod
    def of(timeline: Timeline, unprofiled_ms: float | None = None) -> WhatIf | None:
        """The what-if of a timeline, or None where it holds nothing that can be replayed.

        Where the unprofiled step time is known, the profiler's cost per event is the one that leads to it.
        """
        graph = build_graph(timeline)
        if graph is None:
            return None
        if unprofiled_ms is None:
            return WhatIf(graph, timeline)
        return min(
            (WhatIf(graph, timeline, cost) for cost in _PER_EVENT_NS),
            key=lambda one: (
                round(abs(one.corrected_ms - unprofiled_ms), 3),
                abs(one.per_event_ns - PROFILER_NS_PER_EVENT),
            ),
        )

    @cached_property
    def replayed_ms(self) -> float:
        """Step time of the unchanged replay."""
        return self.step_ms(self.measured)

    @cached_property
    def corrected_ms(self) -> float:
        """Step time with the profiler's cost taken out."""
        return self.step_ms(self.corrected)

    def step_ms(self, costs: Costs) -> float:
        """Step time with these costs."""
        return milliseconds(simulate(self.plan, costs))

    def gain_ms(self, costs: Costs, base: Costs | None = None) -> float:
        """By how much the step time falls from `base` (the corrected replay) to `costs`."""
        before = self.corrected_ms if base is None else self.step_ms(base)
        return max(before - self.step_ms(costs), 0.0)

    # Edits, each from given costs to new ones, so that they can be put on top of one another.

    def without_input(self, costs: Costs) -> Costs:
        """No waiting for data, marked or not."""
        return replace(costs, waiting=np.zeros_like(costs.waiting))

    def without_launch_cost(self, costs: Costs) -> Costs:
        """Framework and launch calls take no time, as if the step were a CUDA graph."""
        return replace(costs, busy=np.zeros_like(costs.busy))

    def without_syncs(self, costs: Costs) -> Costs:
        """The host never waits for the device in a synchronization."""
        return replace(costs, blocking=costs.blocking & (self.graph.host.block != Block.SYNC))

    def without_transfer(self, costs: Costs) -> Costs:
        """Collectives take no longer than their last participant takes to arrive, and slow no kernel beside them."""
        return replace(
            costs,
            transfer=np.where(np.isnan(costs.transfer), costs.transfer, 0.0),
            duration=self.twins.relieved(costs.duration),
        )

    def with_host_copies(self, costs: Costs, duration_ns: NDArray[np.float64] | float) -> Costs:
        """Copies between host and device take `duration_ns` (at most what they took) and do not block the host."""
        device = self.graph.device
        faster = np.minimum(costs.duration, duration_ns)
        return replace(
            costs,
            duration=np.where(device.host_copy, faster, costs.duration),
            blocking=costs.blocking & (self.graph.host.block != Block.PAGEABLE),
        )

    def levelled(self, costs: Costs, parts: Iterable[Part], *, each_step: bool = False) -> Costs:
        """Every rank needs no more for these parts of the step than its peers do.

        A rank's part is scaled to the lower median of all ranks' parts (with an even number of ranks the smaller of the
        two in the middle, so that two late ranks of four count as late). With `each_step`, every step of every rank is
        scaled to the lower median over all of them, which takes a late rank out that is another one each step.
        """
        host, device = self.graph.host, self.graph.device
        busy, waiting, duration = costs.busy, costs.waiting, costs.duration
        chosen = set(parts)
        if "input" in chosen:
            waiting = waiting - self._surplus(waiting, host.process, host.step, each_step)
        if "launch" in chosen:
            busy = busy - self._surplus(busy, host.process, host.step, each_step)
        if "compute" in chosen:
            compute = np.where(device.op_class == OpClass.COMPUTE, duration, 0.0)
            duration = duration - self._surplus(compute, self._process_of_op, device.step, each_step)
        if "copy" in chosen:
            copies = np.where(device.op_class == OpClass.COPY, duration, 0.0)
            duration = duration - self._surplus(copies, self._process_of_op, device.step, each_step)
        # Ranks that no longer wait for one another spin no more beside their kernels.
        duration = self.twins.relieved(duration)
        return replace(costs, busy=busy, waiting=waiting, duration=duration)

    def excess(self, part: Part) -> Excess:
        """By how much each rank's part of the step is above the lower median of the ranks'."""
        host, device = self.graph.host, self.graph.device
        if part == "compute":
            amount = np.where(device.op_class == OpClass.COMPUTE, self.twins.relieved(self.corrected.duration), 0.0)
            process = self._process_of_op
        elif part == "copy":
            amount = np.where(device.op_class == OpClass.COPY, self.corrected.duration, 0.0)
            process = self._process_of_op
        else:
            amount, process = (host.input + host.silent if part == "input" else self.busy), host.process
        totals = {q: float(amount[process == q].sum()) / max(self.graph.steps, 1) for q in self.graph.ranks}
        reference = _lower_median(np.array(list(totals.values())))
        return Excess(part, {self.graph.ranks[q]: total - reference for q, total in totals.items()})

    @cached_property
    def twins(self) -> Twins:
        """Ops that are the same work on other ranks and steps."""
        return find_twins(self.graph, self.timeline)

    @cached_property
    def _process_of_op(self) -> NDArray[np.int64]:
        trace_of_lane = np.array([lane.trace for lane in self.timeline.lanes], np.int64)
        return trace_of_lane[self.graph.device.lane]

    def _surplus(
        self, amount: NDArray[np.float64], process: NDArray[np.int64], step: NDArray[np.int64], each_step: bool
    ) -> NDArray[np.float64]:
        """What of each node's amount is above the level: shape as `amount`."""
        steps = self.graph.steps if each_step else 1
        slot = step if each_step else np.zeros_like(step)
        cell = process * steps + np.minimum(slot, steps - 1)
        size = (max(self.graph.ranks) + 1) * steps
        total = np.bincount(cell, weights=amount, minlength=size)
        used = np.concatenate([np.arange(q * steps, (q + 1) * steps) for q in self.graph.ranks])
        level = _lower_median(total[used])
        with np.errstate(divide="ignore", invalid="ignore"):
            keep = np.where(total > level, level / np.maximum(total, 1e-9), 1.0)
        return amount * (1.0 - keep[cell])


def _lower_median(values: NDArray[np.float64]) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else 0.0
