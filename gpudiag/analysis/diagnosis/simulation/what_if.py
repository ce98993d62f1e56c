"""Score counterfactual scenarios: by how much each makes a job's step shorter.

Every scenario is compared with the *corrected* one, from which the profiler's estimated overhead is removed, because
profiling slows the host and is not part of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import PROFILER_NS_PER_EVENT, SIMULATION_ERROR
from gpudiag.analysis.diagnosis.simulation.graph import Graph
from gpudiag.analysis.diagnosis.simulation.job_model import JobModel
from gpudiag.analysis.diagnosis.simulation.profiler_cost import limited_to, profiler_cost
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.model.timeline import Timeline
from gpudiag.units import NS_PER_MS, milliseconds


@dataclass(frozen=True, eq=False)
class WhatIf:
    """Scores scenarios of a job at an assumed profiler overhead. Savings are in ms per step and never negative.

    Attributes:
        model: the job.
        per_event_ns: profiler overhead per recorded host event.
        max_host_ns: by process, the longest that its host works for a step; the excess is profiler overhead.
        unprofiled_ms: measured step time without the profiler, less `input_not_recorded_ms`.
        later_input_ns: by process, the longest that it waits for input beyond its peers; as recorded if missing.
        input_not_recorded_ms: input wait of unprofiled steps that recorded steps do not show.
        recorded_ms: mean recorded step time of the slowest device.
    """

    model: JobModel
    per_event_ns: float = PROFILER_NS_PER_EVENT
    max_host_ns: Mapping[int, float] = field(default_factory=dict)
    unprofiled_ms: float | None = None
    later_input_ns: Mapping[int, float] = field(default_factory=dict)
    input_not_recorded_ms: float = 0.0
    recorded_ms: float | None = None

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.model.graph

    @property
    def timeline(self) -> Timeline:
        """The model's timeline."""
        return self.model.timeline

    def at_cost(self, per_event_ns: float) -> WhatIf:
        """Return the same job at another profiler overhead per event."""
        return replace(self, per_event_ns=per_event_ns)

    def with_host_limits(self, max_host_ns: Mapping[int, float]) -> WhatIf:
        """Return the same job with these limits of host work."""
        return replace(self, max_host_ns=max_host_ns)

    @cached_property
    def corrected(self) -> Scenario:
        """The recorded durations without profiler overhead, on hosts and in kernels beside waiting collectives."""
        return self.model.with_less_contention(self.host_corrected)

    @cached_property
    def host_corrected(self) -> Scenario:
        """The recorded durations without profiler overhead on hosts."""
        recorded, host = self.model.recorded, self.graph.host
        overhead = profiler_cost(self.graph, self.per_event_ns, self.model.host_pace)
        busy = limited_to(self.graph, host.busy - overhead.busy, self.max_host_ns)
        return replace(recorded, busy=busy, waiting=recorded.waiting - overhead.untraced)

    @cached_property
    def untraced(self) -> NDArray[np.float64]:
        """float64[n], ns: untraced host time before each node, outside communication."""
        communication = self.model.communication.waiting
        return np.fmin(self.graph.host.untraced, np.maximum(self.host_corrected.waiting - communication, 0.0))

    @cached_property
    def simulated_ms(self) -> float:
        """Simulated step time with the recorded durations."""
        return self.step_ms(self.model.recorded)

    @cached_property
    def corrected_ms(self) -> float:
        """Simulated step time without profiler overhead."""
        return self.step_ms(self.corrected)

    @property
    def now_ms(self) -> float:
        """The step time that savings refer to: the corrected one, or the unprofiled one if clearly shorter."""
        unprofiled = self.corrected_ms if self.unprofiled_ms is None else self.unprofiled_ms
        return unprofiled if self.corrected_ms > (1 + SIMULATION_ERROR) * unprofiled else self.corrected_ms

    @cached_property
    def estimated_ms(self) -> float:
        """The step time without the profiler, estimated from the recording.

        No step is longer without the profiler than with it, except for input waits that only unprofiled steps show.
        """
        recorded = self.corrected_ms if self.recorded_ms is None else self.recorded_ms
        return min(self.corrected_ms, recorded) + self.input_not_recorded_ms

    @property
    def max_saving_ms(self) -> float:
        """The step time that reports show, measured or estimated: no cause saves more."""
        return self.estimated_ms if self.unprofiled_ms is None else self.unprofiled_ms + self.input_not_recorded_ms

    def step_ms(self, scenario: Scenario) -> float:
        """Return the simulated step time."""
        return milliseconds(self.model.simulate(scenario).step_ns)

    def each_step_ms(self, scenarios: Iterable[Scenario]) -> list[float]:
        """Return the simulated step time of each scenario."""
        return [self.step_ms(scenario) for scenario in scenarios]

    def steps_ms(self, scenarios: Iterable[Scenario]) -> list[NDArray[np.float64]]:
        """Return for each scenario float64[steps], the time of each analysed step; their mean is `step_ms`."""
        return [self.model.simulate(scenario).steps_ns / NS_PER_MS for scenario in scenarios]

    def saving_ms(self, scenario: Scenario, base: Scenario | None = None) -> float:
        """Return by how much the step is shorter in this scenario than in `base` (default: the corrected one)."""
        return self.savings_ms([scenario], base)[0]

    def savings_ms(self, scenarios: Iterable[Scenario], base: Scenario | None = None) -> list[float]:
        """Return `saving_ms` of each scenario, at most the step time that reports show."""
        scenarios = list(scenarios)
        before, *after = self.each_step_ms([self.corrected if base is None else base, *scenarios])
        now = before if base is not None else self.now_ms
        limit = self.max_saving_ms
        return [
            max(min(before - ms, self._unprofiled_saving_ms(scenario, before, now, ms), limit), 0.0) if before else 0.0
            for scenario, ms in zip(scenarios, after, strict=True)
        ]

    def _unprofiled_saving_ms(self, scenario: Scenario, before: float, now: float, after: float) -> float:
        """Return the saving if unprofiled steps take `now`, less than the simulated `before`.

        Recording slowed part of the job in a way that the trace does not show. The remaining work `after` is known, so
        the cause costs the rest, `now - after`. If the remaining work was slowed too, that difference is too small, and
        the cause costs at least its share of the step. On GPUs a step without communication keeps its kernels and
        launches, which were not slowed; what was slowed unseen are the threads that sum and enqueue gradients. (On two
        H200, communication of GPT with `ps-gpu` and `cpu-reduce` and of ResNet-50 with `cpu-reduce` costs 3.3, 9.1 and
        9.4 ms. The rest is 2.2, 8.4 and 10.6 ms, the share 10.5, 17.0 and 17.4 ms.)
        """
        rest, share = now - after, (before - after) * now / before
        if not scenario.communicates and not any(track.is_cpu for track in self.timeline.tracks):
            return rest
        return max(rest, share)
