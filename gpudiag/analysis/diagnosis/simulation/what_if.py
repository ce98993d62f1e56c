"""A job's replay with given costs: how long its step would be with a cause taken away (`edits`).

All gains are against the *corrected* replay, from which the profiler's own cost per recorded host event was taken out:
profiling slows the host, and what it costs is nobody's fault in the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    PROFILER_NS_PER_CALL,
    PROFILER_NS_PER_EVENT,
    SIMULATION_ERROR,
)
from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.communication import (
    HostPart,
    bucket_copy_ops,
    host_part,
)
from gpudiag.analysis.diagnosis.simulation.graph import Costs, Graph, unchanged
from gpudiag.analysis.diagnosis.simulation.level_between_ranks import host_segments, op_segments
from gpudiag.analysis.diagnosis.simulation.profiler_cost import (
    HostPace,
    host_pace,
    no_longer_than,
    profiler_cost,
    usual_ns_per_event,
)
from gpudiag.analysis.diagnosis.simulation.simulate import System, settle
from gpudiag.analysis.diagnosis.simulation.undisturbed_baseline import UndisturbedBaseline, find_baseline
from gpudiag.analysis.diagnosis.simulation.unprofiled_cost import (
    as_each_host_was_timed,
    as_hosts_were_timed,
    as_steps_were_timed,
    recorded_lightly,
)
from gpudiag.analysis.diagnosis.unprofiled_steps import UnprofiledInput
from gpudiag.model.timeline import Timeline
from gpudiag.units import NS_PER_MS, milliseconds


class _Simulated(msgspec.Struct, frozen=True):
    """A step's time, that of each step, and how long each lane's collectives wait for their peers, in ns."""

    step_ns: float
    steps_ns: NDArray[np.float64]
    waited: NDArray[np.float64]


class WhatIf:
    """One job's replay, ready to be edited. Every gain is in milliseconds per step and never negative.

    Args:
        graph: the replay graph.
        timeline: what the graph was built from.
        per_event_ns: the profiler's cost per recorded host event.
        system: the graph made ready for replays where it is already.
        pace: of the hosts, where that is known already.
        timed_ms: a step's time without the profiler, where the run measured it, less what it then waited for input and
            did not while it was recorded (`input_not_recorded_ms`).
        most_host_ns: by process, the most that its host works for a step; what is beyond was the profiler's doing.
        later_input_ns: by process, the most by which it waits longer for input in a step than its peers; none where as
            it was recorded.
        recorded_ms: a step's time of the slowest device as recorded, where that is known.
    """

    def __init__(
        self,
        graph: Graph,
        timeline: Timeline,
        per_event_ns: float = PROFILER_NS_PER_EVENT,
        *,
        system: System | None = None,
        pace: HostPace | None = None,
        timed_ms: float | None = None,
        most_host_ns: Mapping[int, float] | None = None,
        later_input_ns: Mapping[int, float] | None = None,
        input_not_recorded_ms: float = 0.0,
        recorded_ms: float | None = None,
    ) -> None:
        self.graph = graph
        self.recorded_ms = recorded_ms
        self.input_not_recorded_ms = input_not_recorded_ms
        self.most_host_ns = most_host_ns or {}
        self.later_input_ns = later_input_ns or {}
        self.timeline = timeline
        self.timed_ms = timed_ms
        self._simulated: WeakKeyDictionary[Costs, _Simulated] = WeakKeyDictionary()
        self._simulated_with: dict[bytes, _Simulated] = {}
        self.system = System(graph) if system is None else system
        self.measured = unchanged(graph)
        self.per_event_ns = per_event_ns
        self.pace = host_pace(graph) if pace is None else pace
        cost = profiler_cost(graph, self.per_event_ns, self.pace)
        self.busy = no_longer_than(graph, graph.host.busy - cost.busy, self.most_host_ns)
        self.waiting = self.measured.waiting - cost.silent

    @cached_property
    def corrected(self) -> Costs:
        """The costs without the profiler's: on the host, and in kernels beside collectives that waited for it."""
        return self._eased(self.on_host, self._simulate(self.on_host))

    @cached_property
    def on_host(self) -> Costs:
        """The costs without the profiler's on the host."""
        return replace(self.measured, busy=self.busy, waiting=self.waiting)

    @staticmethod
    def of(
        timeline: Timeline,
        unprofiled_ms: float | None = None,
        *,
        host_ms: Mapping[int, float] | None = None,
        devices_set_pace: bool = False,
        later_input_ms: Mapping[int, float] | None = None,
        unprofiled_input: UnprofiledInput | None = None,
        recorded_ms: float | None = None,
    ) -> WhatIf | None:
        """The what-if of a timeline, or None where it holds nothing that can be replayed.

        Where the unprofiled step time is known, the profiler's cost per event is the one that leads to it; where the
        device sets its pace, the one with which no host takes longer than in its fastest timed step.

        Args:
            timeline: the job.
            unprofiled_ms: the mean step without the profiler, of the slowest rank.
            host_ms: by rank, the least that its host took to queue a step's work without the profiler.
            devices_set_pace: whether without it every host was far ahead of its device.
            later_input_ms: by rank, how much longer it waited for input without it than most, where most waited.
            timed_input: what fetching batches took without it.
            recorded_ms: the mean step of the slowest device as recorded.
        """
        graph = build_graph(timeline)
        if graph is None:
            return None
        each_ns = PROFILER_NS_PER_CALL if recorded_lightly(timeline) else usual_ns_per_event(graph)
        later = later_input_ms or {}
        later_ns = {process: later[rank] * NS_PER_MS for process, rank in graph.ranks.items() if rank in later}
        missing_ms = unprofiled_input.not_in_ms(_fetching_ms(graph)) if unprofiled_input is not None else 0.0
        if unprofiled_ms is not None:
            unprofiled_ms = max(unprofiled_ms - missing_ms, 0.0)
        usual = WhatIf(
            graph,
            timeline,
            each_ns,
            timed_ms=unprofiled_ms,
            later_input_ns=later_ns,
            input_not_recorded_ms=missing_ms,
            recorded_ms=recorded_ms,
        )
        if unprofiled_ms is None:
            return usual
        timed = as_hosts_were_timed(as_steps_were_timed(usual, unprofiled_ms), unprofiled_ms, host_ms or {})
        return as_each_host_was_timed(timed, unprofiled_ms, host_ms or {}) if devices_set_pace else timed

    def at_cost(self, per_event_ns: float, *, most_host_ns: Mapping[int, float] | None = None) -> WhatIf:
        """The same with the profiler at another cost per event, or hosts at other most."""
        other = WhatIf(
            self.graph,
            self.timeline,
            per_event_ns,
            system=self.system,
            pace=self.pace,
            timed_ms=self.timed_ms,
            most_host_ns=self.most_host_ns if most_host_ns is None else most_host_ns,
            later_input_ns=self.later_input_ns,
            input_not_recorded_ms=self.input_not_recorded_ms,
            recorded_ms=self.recorded_ms,
        )
        # What does not hang on the profiler's cost is worked out once.
        for shared in ("baseline", "bucket_copy", "exchanged", "process_of_op", "segments"):
            if shared in self.__dict__:
                other.__dict__[shared] = self.__dict__[shared]
        other._simulated, other._simulated_with = self._simulated, self._simulated_with
        return other

    @cached_property
    def replayed_ms(self) -> float:
        """Step time of the unchanged replay."""
        return self.step_ms(self.measured)

    @cached_property
    def corrected_ms(self) -> float:
        """Step time with the profiler's cost taken out."""
        return self.step_ms(self.corrected)

    @property
    def now_ms(self) -> float:
        """The step as it is: corrected, or as it was timed where it was so much faster."""
        timed = self.corrected_ms if self.timed_ms is None else self.timed_ms
        return timed if self.corrected_ms > (1 + SIMULATION_ERROR) * timed else self.corrected_ms

    @cached_property
    def estimated_ms(self) -> float:
        """The step without the profiler, estimated from the recording.

        No step is longer without the profiler than with it, but for input that was waited for in timed steps only.
        """
        recorded = self.corrected_ms if self.recorded_ms is None else self.recorded_ms
        return min(self.corrected_ms, recorded) + self.input_not_recorded_ms

    @property
    def most_ms(self) -> float:
        """The step that reports show, as timed or else as estimated: no cause saves more."""
        return self.estimated_ms if self.timed_ms is None else self.timed_ms + self.input_not_recorded_ms

    def step_ms(self, costs: Costs) -> float:
        """Step time with these costs; where they leave less waiting, kernels beside it are that much less disturbed."""
        return milliseconds(self._simulate_eased(costs).step_ns)

    def each_step_ms(self, many: Iterable[Costs]) -> list[float]:
        """`step_ms` with each of these costs."""
        return [self.step_ms(costs) for costs in many]

    def steps_ms(self, many: Iterable[Costs]) -> list[NDArray[np.float64]]:
        """float64[steps] for each of these costs: how long each analysed step takes; their mean is `step_ms`."""
        return [self._simulate_eased(costs).steps_ns / NS_PER_MS for costs in many]

    def _simulate_eased(self, costs: Costs) -> _Simulated:
        return self._simulate(self._eased(costs, self._simulate(costs)))

    def _simulate(self, costs: Costs) -> _Simulated:
        """The replay with these costs as they are; where they come to nothing new it is not done again."""
        if costs not in self._simulated:
            weights = self.system.weights(costs)
            told = weights.tobytes()
            if told not in self._simulated_with:
                settled = settle(self.system, weights)
                waited = np.bincount(self.graph.device.track, weights=settled.waited).astype(np.float64)
                self._simulated_with[told] = _Simulated(settled.step_ns, settled.steps_ns, waited)
            self._simulated[costs] = self._simulated_with[told]
        return self._simulated[costs]

    def _eased(self, costs: Costs, simulated: _Simulated) -> Costs:
        """The costs with what kernels gain when collectives wait only as long as they did in the replay."""
        track = self.graph.device.track
        if not self.baseline.waiting_share.any():
            return costs
        gone = np.clip(1 - simulated.waited / np.maximum(self._waited_as_measured, 1.0), 0.0, 1.0)
        duration = np.fmin(costs.duration, self.baseline.relieved_of_waiting(self.measured.duration, gone[track]))
        return costs if np.array_equal(duration, costs.duration) else replace(costs, duration=duration)

    @cached_property
    def _waited_as_measured(self) -> NDArray[np.float64]:
        """By lane, how long its collectives waited for their peers, in ns."""
        waited = self.system.waited(np.array(self.system.measured))
        return np.bincount(self.graph.device.track, weights=waited).astype(np.float64)

    def gain_ms(self, costs: Costs, base: Costs | None = None) -> float:
        """By how much the step time falls from `base` (the corrected replay) to `costs`."""
        return self.gains_ms([costs], base)[0]

    def gains_ms(self, many: Iterable[Costs], base: Costs | None = None) -> list[float]:
        """By how much it falls to each of these costs: by no more than the step that is shown."""
        asked = list(many)
        before, *after = self.each_step_ms([self.corrected if base is None else base, *asked])
        now = before if base is not None else self.now_ms
        most = self.most_ms
        return [
            max(min(before - ms, self._gained_ms(costs, before, now, ms), most), 0.0) if before else 0.0
            for costs, ms in zip(asked, after, strict=True)
        ]

    def _gained_ms(self, costs: Costs, before: float, now: float, after: float) -> float:
        """The gain where the timed steps are faster: the recording slowed what it cannot tell from the job.

        What is left without a cause is known, and what the cause costs is the rest of the timed step. Where what is
        left was slowed too, that is too little, and the cause costs at least its share of the timed step. Without the
        exchange kernels and launches are left, which on a GPU take what they took; slowed unseen are the threads that
        sum and hand over gradients. (The exchange of gpt under `ps-gpu` and `cpu-reduce` and of ResNet-50 under
        `cpu-reduce`, on two H200, costs 3.3, 9.1 and 9.4 ms. The rest is 2.2, 8.4 and 10.6, the share 10.5, 17.0 and
        17.4.)
        """
        rest, share = now - after, (before - after) * now / before
        if not costs.exchanged and not any(track.is_cpu for track in self.timeline.tracks):
            return rest
        return max(rest, share)

    @cached_property
    def baseline(self) -> UndisturbedBaseline:
        """Ops that are the same work on other ranks and steps."""
        return find_baseline(self.graph, self.timeline)

    @cached_property
    def bucket_copy(self) -> NDArray[np.bool_]:
        """bool[m]: ops that only move gradients in and out of the buckets in which they are exchanged."""
        return bucket_copy_ops(self.graph, self.timeline)

    @cached_property
    def exchanged(self) -> HostPart:
        """What the exchange has the hosts do and wait for."""
        return host_part(self.graph, self.timeline)

    @cached_property
    def stalled(self) -> NDArray[np.float64]:
        """float64[n], ns: for how long of each node's waiting the thread was elsewhere, and not at an exchange."""
        return np.fmin(self.graph.host.stall, np.maximum(self.waiting - self.exchanged.waiting, 0.0))

    @cached_property
    def process_of_op(self) -> NDArray[np.int64]:
        """int64[m]: index of the process that drives each op's device."""
        trace_of_track = np.array([track.trace for track in self.timeline.tracks], np.int64)
        return trace_of_track[self.graph.device.track]

    @cached_property
    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of host nodes and of device ops: between which collectives of the step they lie."""
        of_node = host_segments(self.graph)
        return of_node, op_segments(self.graph, of_node)


def _fetching_ms(graph: Graph) -> float:
    """How long the ranks fetch batches in a recorded step, marked or not, in ms: their mean."""
    return milliseconds(
        float(graph.host.input.sum() + graph.host.silent.sum()) / max(graph.steps, 1) / len(graph.ranks)
    )
