"""The immutable model of a job: its graph, its communication and contention, and its simulation.

Nothing here depends on what the profiler cost, so scenarios with different profiler overhead share one model.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.communication import CommunicationWork, bucket_copy_ops, communication_work
from gpudiag.analysis.diagnosis.simulation.contention import Contention, find_contention
from gpudiag.analysis.diagnosis.simulation.graph import Graph
from gpudiag.analysis.diagnosis.simulation.imbalance import host_segments, op_segments
from gpudiag.analysis.diagnosis.simulation.profiler_cost import HostPace, host_pace
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario, recorded_scenario
from gpudiag.analysis.diagnosis.simulation.simulate import System, simulate
from gpudiag.model.timeline import Timeline


class SimulatedStep(msgspec.Struct, frozen=True):
    """The mean step time, the time of each step, and how long each track's collectives wait for peers; in ns."""

    step_ns: float
    steps_ns: NDArray[np.float64]
    waited_ns: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JobModel:
    """A graph and the timeline from which it was built; derived data is computed once, on first use."""

    graph: Graph
    timeline: Timeline
    _by_scenario: MutableMapping[Scenario, SimulatedStep] = field(default_factory=WeakKeyDictionary, init=False)
    _by_weights: dict[bytes, SimulatedStep] = field(default_factory=dict, init=False)

    @cached_property
    def recorded(self) -> Scenario:
        """The durations as recorded."""
        return recorded_scenario(self.graph)

    @cached_property
    def contention(self) -> Contention:
        """The contention of kernels beside collectives."""
        return find_contention(self.graph, self.timeline)

    @cached_property
    def communication(self) -> CommunicationWork:
        """Host and device work caused by communication, other than collectives."""
        return communication_work(self.graph, self.timeline)

    @cached_property
    def bucket_copy(self) -> NDArray[np.bool_]:
        """bool[m]: ops that only copy gradients into or out of communication buckets."""
        return bucket_copy_ops(self.graph, self.timeline)

    @cached_property
    def process_of_op(self) -> NDArray[np.int64]:
        """Return int64[m]: index of the process that drives each op's device."""
        return np.array([track.trace for track in self.timeline.tracks], np.int64)[self.graph.device.track]

    @cached_property
    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Between which collectives of the step host nodes and device ops lie (`imbalance`)."""
        segment_of_node = host_segments(self.graph)
        return segment_of_node, op_segments(self.graph, segment_of_node)

    @cached_property
    def host_pace(self) -> HostPace:
        """The pace of each host."""
        return host_pace(self.graph)

    @cached_property
    def system(self) -> System:
        """The graph compiled for simulation."""
        return System(self.graph)

    def simulate(self, scenario: Scenario) -> SimulatedStep:
        """Simulate a scenario; if collectives wait less than recorded, kernels during these waits are slowed less."""
        return self._simulate(self.with_less_contention(scenario))

    def with_less_contention(self, scenario: Scenario) -> Scenario:
        """Shorten kernels during collectives in proportion to the wait that the scenario removes."""
        if not self.contention.waiting_share.any():
            return scenario
        waited = self._simulate(scenario).waited_ns
        removed = np.clip(1 - waited / np.maximum(self._recorded_waits_ns, 1.0), 0.0, 1.0)[self.graph.device.track]
        shorter = self.contention.waiting_removed_from(self.recorded.duration, removed)
        duration = np.fmin(scenario.duration, shorter)
        return scenario if np.array_equal(duration, scenario.duration) else replace(scenario, duration=duration)

    def _simulate(self, scenario: Scenario) -> SimulatedStep:
        """Simulate the scenario exactly as given, or return the result of an equal one."""
        if scenario not in self._by_scenario:
            weights = self.system.weights(scenario)
            key = weights.tobytes()
            if key not in self._by_weights:
                steady = simulate(self.system, weights)
                self._by_weights[key] = SimulatedStep(steady.step_ns, steady.steps_ns, self._by_track(steady.waited))
            self._by_scenario[scenario] = self._by_weights[key]
        return self._by_scenario[scenario]

    @cached_property
    def _recorded_waits_ns(self) -> NDArray[np.float64]:
        return self._by_track(self.system.waited(np.array(self.system.measured)))

    def _by_track(self, op_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(self.graph.device.track, weights=op_ns).astype(np.float64)
