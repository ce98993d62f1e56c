"""Edits of the replay graph: what each cause costs, by taking only it away.

All gains are against the *corrected* replay, from which the profiler's own cost per recorded host event was taken out:
profiling slows the host, and what it costs is nobody's fault in the job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.replay.build import build_graph
from gpudiag.analysis.diagnosis.replay.excess import Excess, above_peers
from gpudiag.analysis.diagnosis.replay.exchange import (
    QUEUED_NS,
    HostPart,
    host_part,
    packing_ops,
    remainder,
)
from gpudiag.analysis.diagnosis.replay.graph import NONE, Block, Graph
from gpudiag.analysis.diagnosis.replay.level_between_ranks import above_level, host_segments, op_segments
from gpudiag.analysis.diagnosis.replay.profiler_cost import (
    PROFILER_NS_PER_CALL,
    PROFILER_NS_PER_EVENT,
    HostPace,
    host_pace,
    profiler_cost,
    usual_ns_per_event,
)
from gpudiag.analysis.diagnosis.replay.schedule import Schedule
from gpudiag.analysis.diagnosis.replay.simulate import Costs, settle_each, unchanged, waited_for
from gpudiag.analysis.diagnosis.replay.undisturbed_baseline import UndisturbedBaseline, find_baseline
from gpudiag.model.timeline import OpClass, Timeline
from gpudiag.units import milliseconds

#: What the profiler is taken to add to the host per event at most; between 1.0 and 2.5 µs were seen.
_MOST_NS_PER_EVENT = 5000.0
_HALVINGS = 12
_CLOSE = 1e-3
#: From a kernel's end to the start of the next in a CUDA graph. Measured on H200s: 0.41 and 0.51 µs in the mean, of
#: 3,648 and 2,404 kernels; launched one by one they are 1.2 to 1.3 µs apart when the host is far ahead.
_GAP_IN_GRAPH_NS = 450.0
#: How near the replay comes to what was measured: a step time within this share says nothing of the profiler's cost.
_AS_NEAR_AS_REPLAYS_ARE = 0.01

Part = Literal["input", "launch", "compute", "copy"]
PARTS: tuple[Part, ...] = ("input", "launch", "compute", "copy")


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A step's time, and how long each lane's collectives wait for their peers, in ns."""

    step_ns: float
    waited: NDArray[np.float64]


class WhatIf:
    """One job's replay, ready to be edited. Every gain is in milliseconds per step and never negative.

    Args:
        graph: the replay graph.
        timeline: what the graph was built from.
        per_event_ns: the profiler's cost per recorded host event.
        schedule: the graph's schedule where there is one already.
        pace: of the hosts, where that is known already.
        timed_ms: a step's time without the profiler, where the run measured it.
    """

    def __init__(
        self,
        graph: Graph,
        timeline: Timeline,
        per_event_ns: float = PROFILER_NS_PER_EVENT,
        *,
        schedule: Schedule | None = None,
        pace: HostPace | None = None,
        timed_ms: float | None = None,
    ) -> None:
        self.graph = graph
        self.timeline = timeline
        self.timed_ms = timed_ms
        self._replayed: dict[int, _Replayed] = {}
        self.schedule = Schedule(graph) if schedule is None else schedule
        self.measured = unchanged(graph)
        self.per_event_ns = per_event_ns
        self.pace = host_pace(graph) if pace is None else pace
        cost = profiler_cost(graph, self.per_event_ns, self.pace)
        self.busy = graph.host.busy - cost.busy
        self.waiting = self.measured.waiting - cost.silent

    @cached_property
    def corrected(self) -> Costs:
        """The costs without the profiler's: on the host, and in kernels beside collectives that waited for it."""
        on_host = replace(self.measured, busy=self.busy, waiting=self.waiting)
        # The unchanged replay is asked for as well, and costs little beside another.
        return self._eased(on_host, self._replay([on_host, self.measured])[0])

    @staticmethod
    def of(timeline: Timeline, unprofiled_ms: float | None = None) -> WhatIf | None:
        """The what-if of a timeline, or None where it holds nothing that can be replayed.

        Where the unprofiled step time is known, the profiler's cost per event is the one that leads to it.
        """
        graph = build_graph(timeline)
        if graph is None:
            return None
        each_ns = PROFILER_NS_PER_CALL if _lightly(timeline) else usual_ns_per_event(graph)
        usual = WhatIf(graph, timeline, each_ns, timed_ms=unprofiled_ms)
        return usual if unprofiled_ms is None else usual._calibrated(unprofiled_ms)

    def at_cost(self, per_event_ns: float) -> WhatIf:
        """The same with the profiler at another cost per event."""
        other = WhatIf(
            self.graph, self.timeline, per_event_ns, schedule=self.schedule, pace=self.pace, timed_ms=self.timed_ms
        )
        # What does not hang on the profiler's cost is worked out once.
        for shared in ("baseline", "packing", "exchanged"):
            if shared in self.__dict__:
                other.__dict__[shared] = self.__dict__[shared]
        other._replayed = self._replayed
        return other

    def _calibrated(self, unprofiled_ms: float) -> WhatIf:
        """With the cost per event nearest to the usual that leads to the unprofiled step time, or nearest to it.

        The corrected step time falls with the cost until the device sets the pace, and nothing beyond that is known.
        A host that was made just as slow as the device would seem to set the pace in every what-if.
        """
        if abs(self.corrected_ms - unprofiled_ms) <= _AS_NEAR_AS_REPLAYS_ARE * unprofiled_ms:
            return self
        most = 4 * PROFILER_NS_PER_CALL if _lightly(self.timeline) else _MOST_NS_PER_EVENT
        near, far = self.per_event_ns, (most if self.corrected_ms > unprofiled_ms else 0.0)
        dearer, limit = far > near, self.at_cost(far).corrected_ms
        target = max(unprofiled_ms, limit * (1 + _AS_NEAR_AS_REPLAYS_ARE)) if dearer else min(unprofiled_ms, limit)
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            ahead = self.at_cost(middle).corrected_ms - target
            enough = ahead <= _CLOSE * target if dearer else ahead >= -_CLOSE * target
            near, far = (near, middle) if enough else (middle, far)
        return self.at_cost(far)

    @cached_property
    def replayed_ms(self) -> float:
        """Step time of the unchanged replay."""
        return self.each_step_ms([self.measured, self.corrected])[0]

    @cached_property
    def corrected_ms(self) -> float:
        """Step time with the profiler's cost taken out."""
        return self.step_ms(self.corrected)

    @property
    def now_ms(self) -> float:
        """The step as it is: corrected, or as it was timed where it was so much faster."""
        timed = self.corrected_ms if self.timed_ms is None else self.timed_ms
        return timed if self.corrected_ms > (1 + _AS_NEAR_AS_REPLAYS_ARE) * timed else self.corrected_ms

    def step_ms(self, costs: Costs) -> float:
        """Step time with these costs; where they leave less waiting, kernels beside it are that much less disturbed."""
        return self.each_step_ms([costs])[0]

    def each_step_ms(self, many: Iterable[Costs]) -> list[float]:
        """`step_ms` with each of these costs: several at once take little longer than one."""
        asked = list(many)
        known = [self._eased(costs, one) for costs in asked if (one := self._replayed.get(costs.digest))]
        first = self._replay([*asked, *known])
        eased = [self._eased(costs, one) for costs, one in zip(asked, first, strict=False)]
        return [milliseconds(one.step_ns) for one in self._replay(eased)]

    def _replay(self, many: Iterable[Costs]) -> list[_Replayed]:
        """The replay with each of these costs as they are; with costs that are known already it is not done again."""
        keyed = [(costs.digest, costs) for costs in many]
        new = {key: costs for key, costs in keyed if key not in self._replayed}
        lane = self.graph.device.lane
        for key, settled in zip(new, settle_each(self.schedule, list(new.values())), strict=True):
            waited = np.bincount(lane, weights=settled.waited).astype(np.float64)
            self._replayed[key] = _Replayed(settled.step_ns, waited)
        return [self._replayed[key] for key, _ in keyed]

    def _eased(self, costs: Costs, replayed: _Replayed) -> Costs:
        """The costs with what kernels gain when collectives wait only as long as they did in the replay."""
        lane = self.graph.device.lane
        if not costs.joined or not self.baseline.waiting_share.any():
            return costs
        gone = np.clip(1 - replayed.waited / np.maximum(self._waited_as_measured, 1.0), 0.0, 1.0)
        duration = np.fmin(costs.duration, self.baseline.relieved_of_waiting(self.measured.duration, gone[lane]))
        return costs if np.array_equal(duration, costs.duration) else replace(costs, duration=duration)

    @cached_property
    def _waited_as_measured(self) -> NDArray[np.float64]:
        """By lane, how long its collectives waited for their peers, in ns."""
        waited = waited_for(self.graph, self.graph.device.start)
        return np.bincount(self.graph.device.lane, weights=waited).astype(np.float64)

    def gain_ms(self, costs: Costs, base: Costs | None = None) -> float:
        """By how much the step time falls from `base` (the corrected replay) to `costs`."""
        return self.gains_ms([costs], base)[0]

    def gains_ms(self, many: Iterable[Costs], base: Costs | None = None) -> list[float]:
        """By how much it falls to each of these costs: several at once take little longer than one."""
        before, *after = self.each_step_ms([self.corrected if base is None else base, *many])
        now = before if base is not None else self.now_ms
        # Where the timed steps are faster, the recording slowed what it cannot tell from the job: what is left without
        # a cause is known, and what it costs is the rest of the timed step, or its share of that.
        return [
            max(min(before - ms, max(now - ms, (before - ms) * now / before)), 0.0) if before else 0.0 for ms in after
        ]

    # Edits, each from given costs to new ones, so that they can be put on top of one another.

    def without_input(self, costs: Costs) -> Costs:
        """No waiting for data, marked or not. Waiting for the exchange stays."""
        return replace(costs, waiting=np.fmin(costs.waiting, self.exchanged.waiting))

    def without_launch_cost(self, costs: Costs) -> Costs:
        """Framework and launch calls take no time. What the exchange has the host do stays."""
        return replace(costs, busy=np.fmin(costs.busy, self.exchanged.busy + self.exchanged.calls))

    def as_cuda_graph(self, costs: Costs) -> Costs:
        """The step is launched at once: no time on the host, and kernels that follow each other as in a CUDA graph.

        Closer together come only kernels that the device waited for; the others need no graph.
        """
        host, device = self.graph.host, self.graph.device
        waited_for = (device.launch != NONE) & (device.start - host.time[np.maximum(device.launch, 0)] <= QUEUED_NS)
        waited_for &= device.op_class == OpClass.COMPUTE
        gap = np.where(waited_for, np.fmin(costs.gap, _GAP_IN_GRAPH_NS), costs.gap)
        return replace(self.without_launch_cost(costs), gap=gap)

    def without_syncs(self, costs: Costs) -> Costs:
        """The host never waits for the device in a synchronization, and nothing is copied to it to be waited for.

        Without its `.item()` a step has no copy of four bytes either, nor the gap behind it.
        """
        host, device = self.graph.host, self.graph.device
        wanted = np.zeros(len(device.start), np.bool_)
        wanted[host.block_on[(host.block == Block.SYNC) & (host.block_on != NONE)]] = True
        wanted &= device.host_copy
        return replace(
            costs,
            blocking=costs.blocking & ((host.block != Block.SYNC) | self.exchanged.blocks),
            duration=np.where(wanted, 0.0, costs.duration),
            gap=np.where(wanted, 0.0, costs.gap),
        )

    def without_transfer(self, costs: Costs) -> Costs:
        """Collectives take no longer than their last participant takes to arrive, and their transfers slow no kernel.

        What they slow while they wait for a late rank is that rank's doing.
        """
        as_measured = self.measured.duration
        slowed = as_measured - self.baseline.relieved_of_transfer(as_measured)
        return replace(
            costs,
            transfer=np.where(np.isnan(costs.transfer), costs.transfer, 0.0),
            duration=np.fmax(self.baseline.relieved(costs.duration), costs.duration - slowed),
        )

    def without_exchange(self, costs: Costs) -> Costs:
        """The ranks train each for itself: no transfer, no packing of gradients, nothing disturbed beside them, and no
        calls on the host for any of it.

        They still wait for one another, so that a late rank's lateness is not counted as the exchange's.
        """
        alone = self.without_transfer(self.without_exchange_calls(costs))
        part = self.exchanged
        gone = self.packing | (self.graph.device.op_class == OpClass.COMMUNICATION)
        gap = np.fmin(alone.gap, self.exchanged.undisturbed_gap)
        return replace(
            alone,
            busy=np.maximum(alone.busy - part.busy, 0.0) / part.devices,
            waiting=np.maximum(alone.waiting - part.waiting, 0.0),
            blocking=alone.blocking & ~part.blocks,
            latency=np.where(gone, np.fmin(alone.latency, 0.0), remainder(alone.latency, part.latency)),
            duration=np.where(gone, 0.0, alone.duration),
            gap=np.where(gone, np.fmin(alone.gap, 0.0), remainder(gap, part.gap)),
        )

    def without_exchange_calls(self, costs: Costs) -> Costs:
        """The host's calls for the exchange take no time; what one takes more than the others is its slowness."""
        costs = replace(costs, busy=np.maximum(costs.busy - self.exchanged.calls, 0.0))
        if self.timeline.lanes[0].is_cpu:  # there what comes before a collective's call is the training itself
            return costs
        device = self.graph.device
        launches = device.launch[(device.op_class == OpClass.COMMUNICATION) | self.packing]
        called = np.zeros(len(costs.busy), np.bool_)
        called[launches[launches != NONE]] = True
        common = self.levelled(costs, ["launch"]).busy
        return replace(costs, busy=np.where(called, costs.busy - common, costs.busy))

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

        A rank's part is brought to the lower median of all ranks' parts (with an even number of ranks the smaller of
        the two in the middle, so that two late ranks of four count as late). With `each_step`, every step of every rank
        is brought to the lower median over all of them, which takes a late rank out that is another one each step. What
        a rank does more of is taken from where in the step it does it (`level_between_ranks`).
        """
        device = self.graph.device
        busy, waiting, duration = costs.busy, costs.waiting, costs.duration
        chosen = set(parts)
        if "input" in chosen:
            waiting = waiting - self._host_above_level(waiting, each_step)
        if "launch" in chosen:
            busy = busy - self._host_above_level(busy, each_step)
        if "compute" in chosen:
            # Level are the ranks in what they compute, not in how they disturb each other by waiting.
            duration = self.baseline.relieved_of_waiting(duration)
            compute = np.where(device.op_class == OpClass.COMPUTE, duration, 0.0)
            duration = duration - self._op_above_level(compute, each_step)
        if "copy" in chosen:
            copies = np.where(device.op_class == OpClass.COPY, duration, 0.0)
            duration = duration - self._op_above_level(copies, each_step)
        return replace(costs, busy=busy, waiting=waiting, duration=duration)

    def excess(self, part: Part) -> Excess:
        """By how much each rank's part of the step is above the lower median of the ranks'."""
        host, device = self.graph.host, self.graph.device
        if part == "compute":
            amount = np.where(device.op_class == OpClass.COMPUTE, self.baseline.relieved(self.corrected.duration), 0.0)
            process = self._process_of_op
        elif part == "copy":
            amount = np.where(device.op_class == OpClass.COPY, self.corrected.duration, 0.0)
            process = self._process_of_op
        else:
            amount, process = (self.waiting if part == "input" else self.busy), host.process
        step = device.step if part in {"compute", "copy"} else host.step
        return above_peers(self.graph, part, amount, process, step)

    @cached_property
    def baseline(self) -> UndisturbedBaseline:
        """Ops that are the same work on other ranks and steps."""
        return find_baseline(self.graph, self.timeline)

    @cached_property
    def packing(self) -> NDArray[np.bool_]:
        """bool[m]: ops that only move gradients in and out of the buckets in which they are exchanged."""
        return packing_ops(self.graph, self.timeline)

    @cached_property
    def exchanged(self) -> HostPart:
        """What the exchange has the hosts do and wait for."""
        return host_part(self.graph, self.timeline)

    @cached_property
    def _process_of_op(self) -> NDArray[np.int64]:
        trace_of_lane = np.array([lane.trace for lane in self.timeline.lanes], np.int64)
        return trace_of_lane[self.graph.device.lane]

    @cached_property
    def _segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of host nodes and of device ops: between which collectives of the step they lie."""
        of_node = host_segments(self.graph)
        return of_node, op_segments(self.graph, of_node)

    def _host_above_level(self, amount: NDArray[np.float64], each_step: bool) -> NDArray[np.float64]:
        host = self.graph.host
        return self._above_level(amount, host.process, host.step, self._segments[0], each_step)

    def _op_above_level(self, amount: NDArray[np.float64], each_step: bool) -> NDArray[np.float64]:
        return self._above_level(amount, self._process_of_op, self.graph.device.step, self._segments[1], each_step)

    def _above_level(
        self,
        amount: NDArray[np.float64],
        process: NDArray[np.int64],
        step: NDArray[np.int64],
        segment: NDArray[np.int64],
        each_step: bool,
    ) -> NDArray[np.float64]:
        """What of each node's amount is above the level of the processes, or of all their steps: shape as `amount`."""
        steps = self.graph.steps if each_step else 1
        slot = step if each_step else np.zeros_like(step)
        cell = process * steps + np.minimum(slot, steps - 1)
        used = np.concatenate([np.arange(q * steps, (q + 1) * steps) for q in self.graph.ranks])
        return above_level(amount, cell, segment, used)


def _lightly(timeline: Timeline) -> bool:
    return all(trace.operators_put_in for trace in timeline.traces)
