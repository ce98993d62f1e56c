"""Estimate the 95 % interval of the step time without the profiler."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, PROFILER_SHARE_OF_EVENT
from gpudiag.analysis.diagnosis.significance import Significance, half_width_ms
from gpudiag.analysis.diagnosis.simulation.profiler_cost import typical_ns_per_event
from gpudiag.intervals import Intervals, length, subtract, union
from gpudiag.statistics import student_t
from gpudiag.units import milliseconds

#: Factor of error, at 95 %, of estimating the profiler's cost per event as half of the host's median time per event.
#: Measured on nine recordings on H200 and H100 hosts with unprofiled steps: the cost was 0.63 to 1.5 times the estimate
#: (the logarithm scatters by 0.30; Student's t of eight).
_COST_FACTOR = 2.0
#: Highest cost of the profiler per event in these nine recordings.
_HIGHEST_COST_NS = 5000.0
#: Drift of CPU processes at 95 %, as a multiple of the scatter of six successive steps. Measured without a profiler in
#: 124 comparisons with the mean step of the same job some seconds earlier or later, on a machine whose two cores were
#: shared with other programs. Independent steps would give 1.05. No comparison differed by more than a factor e.
_DRIFT_SCATTERS = 6.0
_DRIFT_STEPS = 6
_MOST_DRIFT = 1.0
#: Drift of GPU hosts between minutes at 95 %, as a factor. Measured without a profiler on blocks of tens of steps of
#: one job whose host sets the pace (`docs/accuracy.md`, "How often the interval ... holds it").
_HOST_DRIFT = 1.3
#: Largest difference between recorded and other steps, as a share, if the host does not set the pace.
_RECORDING_SHARE = 0.03


def interval_ms(significance: Significance) -> tuple[float, float] | None:
    """Return the 95 % interval of the step time without the profiler, in ms; None for a single step.

    The interval includes the scatter of the steps, the error of the simulation against the recorded step, and the usual
    difference between recorded and unprofiled steps. Without unprofiled steps, it also includes the uncertainty of the
    profiler's cost and the drift of the host. With unprofiled steps, it includes both their mean and the simulated
    step, because the recorded job may have run differently.
    """
    if len(significance.slowest_track_ms) < 2:
        return None
    value = significance.what_if.corrected_ms + significance.what_if.input_not_recorded_ms
    missed = abs(significance.what_if.simulated_ms - significance.case.slowest_ms)
    if significance.timed_ms:
        half = math.hypot(significance.chance_ms, missed) + AS_RECORDED * value
        timed_ms = max(significance.timed_ms, key=statistics.fmean)
        timed, scatter = statistics.fmean(timed_ms), half_width_ms(timed_ms)
        return max(min(value - half, timed - scatter), 0.0), max(value + half, timed + scatter)
    low, high = _profiler_cost_range_ms(significance)
    if all(track.is_cpu for track in significance.case.tracks):
        below, above = -value * math.expm1(-_cpu_drift(significance)), value * math.expm1(_cpu_drift(significance))
    else:
        fast, slow = _host_drift_ms(significance)
        below, above = (
            math.hypot(significance.chance_ms, value - fast),
            math.hypot(significance.chance_ms, slow - value),
        )
    return (
        max(value - math.hypot(below, missed, value - low) - _RECORDING_SHARE * value, 0.0),
        value + math.hypot(above, missed, high - value) + _RECORDING_SHARE * value,
    )


def _host_drift_ms(significance: Significance) -> tuple[float, float]:
    """Return (fast, slow): the step, in ms, if the host drifts in either direction.

    Host work and waits are scaled, except waits for devices.
    """
    costs, value = significance.what_if.corrected, significance.what_if.corrected_ms
    shares = (1 / _HOST_DRIFT, _HOST_DRIFT)
    fast, slow = significance.what_if.each_step_ms(
        [replace(costs, busy=costs.busy * share, waiting=costs.waiting * share) for share in shares]
    )
    return min(fast, value), max(slow, value)


def _profiler_cost_range_ms(significance: Significance) -> tuple[float, float]:
    """Return the shortest and the longest step, in ms, for the possible costs of the profiler."""
    usual, typical = (
        significance.what_if.per_event_ns,
        PROFILER_SHARE_OF_EVENT * typical_ns_per_event(significance.what_if.graph),
    )
    least_ns = min(usual, typical or usual) / _COST_FACTOR
    most_ns = min(max(usual, typical) * _COST_FACTOR, max(_HIGHEST_COST_NS, usual))
    cheap, dear = significance.what_if.at_cost(least_ns), significance.what_if.at_cost(most_ns)
    # The profiler slows unrecorded host work by the same share as recorded work.
    host = significance.what_if.graph.host
    work = max(float((host.busy - np.minimum(host.slow, host.busy)).sum()), 1.0)
    share = min(float((host.busy - dear.host_corrected.busy).sum()) / work, 1.0)
    unrecorded_ms = share * (_host_communication_ms(significance) + _slow_calls_ms(significance))
    value = significance.what_if.corrected_ms
    return max(min(dear.corrected_ms - unrecorded_ms, value), 0.0), max(cheap.corrected_ms, value)


def _host_communication_ms(significance: Significance) -> float:
    """Return the ms per step of communication during which no device op and no collective runs, the most of a track."""
    longest_ms = 0.0
    for track, attributed in zip(significance.case.tracks, significance.case.attribution.tracks, strict=True):
        running = union(
            Intervals(track.ops.start, track.ops.end), Intervals(track.collectives.start, track.collectives.end)
        )
        alone = subtract(attributed.parts["communication_transfer"], running)
        longest_ms = max(longest_ms, milliseconds(length(alone)) / max(len(attributed.step_ns), 1))
    return 0.0 if all(track.is_cpu for track in significance.case.tracks) else longest_ms


def _slow_calls_ms(significance: Significance) -> float:
    """Return the ms per step in slow calls, of the process that spends most."""
    graph = significance.what_if.graph
    slow = np.bincount(graph.host.process, weights=graph.host.slow)
    return milliseconds(float(slow.max(initial=0.0))) / max(graph.steps, 1)


def _cpu_drift(significance: Significance) -> float:
    """Return the drift of the steps of CPU processes at 95 %, as a logarithm."""
    steps = significance.slowest_track_ms
    few = student_t(len(steps) - 1) / student_t(_DRIFT_STEPS - 1)
    return min(_DRIFT_SCATTERS * max(few, 1.0) * statistics.stdev(steps) / statistics.fmean(steps), _MOST_DRIFT)
