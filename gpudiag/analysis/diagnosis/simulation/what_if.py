"""Compute the savings of counterfactual scenarios, with a profiler overhead that is fitted to the unprofiled steps.

Every scenario is compared with the *corrected* scenario, from which the profiler's estimated overhead is removed,
because profiling slows the host and is not part of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    HIGHEST_NS_PER_CALL,
    HIGHEST_NS_PER_EVENT,
    MOST_PROFILER_SHARE,
    POOR_SIMULATION,
    PROFILER_NS_PER_CALL,
    PROFILER_NS_PER_EVENT,
    SIMULATION_ERROR,
)
from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.graph import Graph, HostNodes, Scenario
from gpudiag.analysis.diagnosis.simulation.imbalance import lower_median
from gpudiag.analysis.diagnosis.simulation.job_model import JobModel
from gpudiag.analysis.diagnosis.simulation.profiler_cost import limited_to, profiler_cost, usual_ns_per_event
from gpudiag.analysis.diagnosis.unprofiled_steps import UnprofiledInput
from gpudiag.model.timeline import Timeline
from gpudiag.units import NS_PER_MS, milliseconds

#: Number of halvings of an interval of overheads: 1/4096 of the interval is left.
_BISECTIONS = 12
#: Share of the step time by which a fitted step may miss its target.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The savings of scenarios of a job at an assumed profiler overhead, in ms per step and never negative.

    Attributes:
        model: the job.
        per_event_ns: profiler overhead per recorded host event.
        max_host_ns: process → limit of its host's work per step; work above the limit counts as profiler overhead.
        unprofiled_ms: measured step time without the profiler, less `input_not_recorded_ms`.
        later_input_ns: process → limit, per step, of its excess input wait over its peers; no limit if missing.
        input_not_recorded_ms: input wait of unprofiled steps that recorded steps do not show.
        recorded_ms: mean recorded step time of the slowest device.
        tracing_ns: float64[n], cost of recording source lines before each host node; None if no lines were recorded.
    """

    model: JobModel
    per_event_ns: float = PROFILER_NS_PER_EVENT
    max_host_ns: Mapping[int, float] = field(default_factory=dict)
    unprofiled_ms: float | None = None
    later_input_ns: Mapping[int, float] = field(default_factory=dict)
    input_not_recorded_ms: float = 0.0
    recorded_ms: float | None = None
    tracing_ns: NDArray[np.float64] | None = None

    @property
    def graph(self) -> Graph:
        """Return the model's graph."""
        return self.model.graph

    @property
    def timeline(self) -> Timeline:
        """Return the model's timeline."""
        return self.model.timeline

    def at_cost(self, per_event_ns: float) -> WhatIf:
        """Return the same job at another profiler overhead per event."""
        return replace(self, per_event_ns=per_event_ns)

    def with_host_limits(self, max_host_ns: Mapping[int, float]) -> WhatIf:
        """Return the same job with these limits of host work."""
        return replace(self, max_host_ns=max_host_ns)

    @cached_property
    def corrected(self) -> Scenario:
        """Return the recorded durations without profiler overhead on hosts, and without the contention due to it."""
        return self.model.with_less_contention(self.host_corrected)

    @cached_property
    def host_corrected(self) -> Scenario:
        """Return the recorded durations without profiler overhead on hosts."""
        recorded, host = self.model.recorded, self.graph.host
        overhead = profiler_cost(self.graph, self.per_event_ns, self.model.host_pace)
        busy, waiting = host.busy - overhead.busy, recorded.waiting - overhead.untraced
        if self.tracing_ns is not None:  # recording lines slows calls and the Python between them alike
            share = np.minimum(self.tracing_ns / np.maximum(busy + waiting, 1.0), MOST_PROFILER_SHARE)
            busy, waiting = busy * (1 - share), waiting * (1 - share)
        return replace(recorded, busy=limited_to(self.graph, busy, self.max_host_ns), waiting=waiting)

    @cached_property
    def untraced(self) -> NDArray[np.float64]:
        """Return float64[n], ns: untraced host time before each node, outside communication."""
        communication = self.model.communication.waiting
        return np.fmin(self.graph.host.untraced, np.maximum(self.host_corrected.waiting - communication, 0.0))

    @cached_property
    def simulated_ms(self) -> float:
        """Return the simulated step time with the recorded durations, in ms."""
        return self.step_ms(self.model.recorded)

    @cached_property
    def corrected_ms(self) -> float:
        """Return the simulated step time without profiler overhead, in ms."""
        return self.step_ms(self.corrected)

    @property
    def now_ms(self) -> float:
        """Return the step time, in ms, from which savings count: corrected, or unprofiled if clearly shorter."""
        unprofiled = self.corrected_ms if self.unprofiled_ms is None else self.unprofiled_ms
        return unprofiled if self.corrected_ms > (1 + SIMULATION_ERROR) * unprofiled else self.corrected_ms

    @cached_property
    def estimated_ms(self) -> float:
        """Return the step time without the profiler, estimated from the recording, in ms.

        No step is longer without the profiler than with it, except for input waits that only unprofiled steps show.
        """
        recorded = self.corrected_ms if self.recorded_ms is None else self.recorded_ms
        return min(self.corrected_ms, recorded) + self.input_not_recorded_ms

    @property
    def max_saving_ms(self) -> float:
        """Return the limit of savings: the step time that reports show, measured or estimated, in ms."""
        return self.estimated_ms if self.unprofiled_ms is None else self.unprofiled_ms + self.input_not_recorded_ms

    def step_ms(self, scenario: Scenario) -> float:
        """Return the simulated step time, in ms."""
        return milliseconds(self.model.simulate(scenario).step_ns)

    def each_step_ms(self, scenarios: Iterable[Scenario]) -> list[float]:
        """Return the simulated step time of each scenario, in ms."""
        return [self.step_ms(scenario) for scenario in scenarios]

    def steps_ms(self, scenarios: Iterable[Scenario]) -> list[NDArray[np.float64]]:
        """Return for each scenario float64[steps]: the ms of each analysed step, whose mean is `step_ms`."""
        return [self.model.simulate(scenario).steps_ns / NS_PER_MS for scenario in scenarios]

    def saving_ms(self, scenario: Scenario, base: Scenario | None = None) -> float:
        """Return the savings of this scenario against `base` (default: the corrected scenario), in ms per step."""
        return self.savings_ms([scenario], base)[0]

    def savings_ms(self, scenarios: Iterable[Scenario], base: Scenario | None = None) -> list[float]:
        """Return `saving_ms` of each scenario, limited to `max_saving_ms`; all 0 if the base takes no time."""
        scenarios = list(scenarios)
        before, *after = self.each_step_ms([self.corrected if base is None else base, *scenarios])
        now = before if base is not None else self.now_ms  # unprofiled steps are those of the job, not of another base
        limit = self.max_saving_ms
        return [
            max(min(before - ms, self._unprofiled_saving_ms(scenario, before, now, ms), limit), 0.0) if before else 0.0
            for scenario, ms in zip(scenarios, after, strict=True)
        ]

    def _unprofiled_saving_ms(self, scenario: Scenario, before: float, now: float, after: float) -> float:
        """Return the savings for step times in ms: `now` unprofiled, `before` in the base, `after` in the scenario.

        If `now` is less than `before`, recording slowed part of the job in a way that the trace does not show. The
        removed cause then costs the rest, `now - after`. If recording slowed the remaining work too, this rest is too
        small, and the cause costs at least its share, `(before - after) * now / before`. For communication on GPUs,
        only the rest counts, because recording slows the threads that sum and enqueue gradients, but not the remaining
        job. (On two H200, communication of GPT with `ps-gpu` and `cpu-reduce` and of ResNet-50 with `cpu-reduce` costs
        3.3, 9.1 and 9.4 ms. The rest is 2.2, 8.4 and 10.6 ms, the share 10.5, 17.0 and 17.4 ms.)
        """
        rest, share = now - after, (before - after) * now / before
        if not scenario.communicates and not any(track.is_cpu for track in self.timeline.tracks):
            return rest
        return max(rest, share)


def build_what_if(
    timeline: Timeline,
    unprofiled_ms: float | None = None,
    *,
    host_ms: Mapping[int, float] | None = None,
    devices_set_pace: bool = False,
    later_input_ms: Mapping[int, float] | None = None,
    unprofiled_input: UnprofiledInput | None = None,
    recorded_ms: float | None = None,
    tracing: Callable[[HostNodes], NDArray[np.float64]] | None = None,
) -> WhatIf | None:
    """Return the what-if simulation of a timeline, or None if nothing in it can be simulated.

    If the unprofiled step time is known, the profiler overhead per event is chosen so that the corrected step takes
    this time. If the device sets the pace, the overhead is chosen so that at least half of the hosts work no longer
    than without profiler.

    Args:
        timeline: the job.
        unprofiled_ms: mean unprofiled step time of the slowest rank.
        host_ms: rank → shortest time in which its host enqueued an unprofiled step.
        devices_set_pace: whether every host ran far ahead of its device in unprofiled steps.
        later_input_ms: rank → limit of its excess input wait over its peers, from unprofiled steps.
        unprofiled_input: the wait for input in unprofiled steps.
        recorded_ms: mean recorded step time of the slowest device.
        tracing: returns float64[n], ns before each host node: the cost of recording source lines.
    """
    graph = build_graph(timeline)
    if graph is None:
        return None
    later = later_input_ms or {}
    missing_ms = unprofiled_input.not_in_ms(_fetching_ms(graph)) if unprofiled_input is not None else 0.0
    if unprofiled_ms is not None:
        unprofiled_ms = max(unprofiled_ms - missing_ms, 0.0)
    what_if = WhatIf(
        JobModel(graph, timeline),
        PROFILER_NS_PER_CALL if is_kernel_only(timeline) else usual_ns_per_event(graph),
        unprofiled_ms=unprofiled_ms,
        later_input_ns={process: later[rank] * NS_PER_MS for process, rank in graph.ranks.items() if rank in later},
        input_not_recorded_ms=missing_ms,
        recorded_ms=recorded_ms,
        tracing_ns=None if tracing is None else tracing(graph.host),
    )
    if unprofiled_ms is None:
        return what_if
    fitted = fit_host_time(fit_step_time(what_if, unprofiled_ms), unprofiled_ms, host_ms or {})
    return limit_each_host(fitted, unprofiled_ms, host_ms or {}) if devices_set_pace else fitted


def fit_step_time(what_if: WhatIf, step_ms: float) -> WhatIf:
    """Choose the overhead per event, nearest to the present overhead, at which the corrected step takes `step_ms`.

    A higher overhead shortens the corrected step until the device sets the pace. The search ends 1 % above the step
    time reached then, because a host exactly as slow as the device would seem to set the pace in every scenario.
    """
    if abs(what_if.corrected_ms - step_ms) <= SIMULATION_ERROR * step_ms:
        return what_if
    # Bisect between `near`, the present overhead, which is too low or too high, and `far`, which goes far enough.
    near, far = what_if.per_event_ns, (_highest_ns(what_if) if what_if.corrected_ms > step_ms else 0.0)
    increase, limit = far > near, what_if.at_cost(far).corrected_ms
    # `far` must reach the target. `SIMULATION_ERROR` is the margin of 1 %.
    target = max(step_ms, limit * (1 + SIMULATION_ERROR)) if increase else min(step_ms, limit)
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        ahead = what_if.at_cost(middle).corrected_ms - target
        enough = ahead <= _TOLERANCE * target if increase else ahead >= -_TOLERANCE * target
        near, far = (near, middle) if enough else (middle, far)
    return what_if.at_cost(far)


def fit_host_time(what_if: WhatIf, step_ms: float, host_ms: Mapping[int, float]) -> WhatIf:
    """Raise the overhead per event until at least half of the hosts work no longer than for an unprofiled step.

    If the device sets the pace, the unprofiled step time does not show the host's work. But the host's work takes no
    longer than the step in which the host waited least for a full launch queue. If a simulated host worked longer than
    in that step, its work would hide the savings of device work. An overhead is rejected if it makes the corrected step
    shorter than the unprofiled step.

    Args:
        what_if: the job at the overhead that `fit_step_time` chose.
        step_ms: mean unprofiled step time of the slowest rank.
        host_ms: rank → shortest time in which its host enqueued a step (`fastest_host_ms`).
    """
    near, far = what_if.per_event_ns, _highest_ns(what_if)
    if near >= far or not _hosts_exceed(what_if, host_ms):
        return what_if
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        near, far = (middle, far) if _hosts_exceed(what_if.at_cost(middle), host_ms) else (near, middle)
    fitted = what_if.at_cost(far)
    return fitted if fitted.corrected_ms >= (1 - SIMULATION_ERROR) * step_ms else what_if


def limit_each_host(what_if: WhatIf, step_ms: float, host_ms: Mapping[int, float]) -> WhatIf:
    """Limit each host's work for a step to its unprofiled time; for jobs in which devices set the unprofiled pace.

    Recording slows hosts differently, and the slowest host would seem to set the pace once device work is removed: for
    ResNet-50 with slow collectives on two H200, the hosts worked 24 and 35 ms for a recorded step, but at most 26 and
    30 ms for an unprofiled step. The limits are rejected if they lead to a step shorter than the unprofiled step,
    because they are then too low. The arguments are those of `fit_host_time`.
    """
    if all(track.is_cpu for track in what_if.timeline.tracks):  # the host's work includes the device's
        return what_if
    limits = {process: host_ms[rank] * NS_PER_MS for process, rank in what_if.graph.ranks.items() if rank in host_ms}
    limited = what_if.with_host_limits(limits)
    return limited if limited.corrected_ms >= (1 - POOR_SIMULATION) * step_ms else what_if


def is_kernel_only(timeline: Timeline) -> bool:
    """Return whether all traces are kernel-only, with operators of another recording merged in."""
    return all(trace.operators_merged for trace in timeline.traces)


def _hosts_exceed(what_if: WhatIf, host_ms: Mapping[int, float]) -> bool:
    """Return whether hosts of GPUs work longer for a step than without the profiler, by the lower median over ranks."""
    graph = what_if.graph
    if all(track.is_cpu for track in what_if.timeline.tracks):  # the host's work includes the device's
        return False
    work = np.bincount(graph.host.process, weights=what_if.host_corrected.busy) / graph.steps
    excess = [milliseconds(work[process]) - host_ms[rank] for process, rank in graph.ranks.items() if rank in host_ms]
    return bool(excess) and float(lower_median(np.array(excess))) > 0


def _highest_ns(what_if: WhatIf) -> float:
    return HIGHEST_NS_PER_CALL if is_kernel_only(what_if.timeline) else HIGHEST_NS_PER_EVENT


def _fetching_ms(graph: Graph) -> float:
    """Return the time in which a recorded step fetches batches, marked or not, in ms, the mean over ranks."""
    fetching = float(graph.host.input.sum() + graph.host.before_first_op.sum())
    return milliseconds(fetching / max(graph.steps, 1) / len(graph.ranks))
