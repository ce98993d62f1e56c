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

#: What the profiler costs a host per event is half of what that host takes per event in the median, to this factor at
#: 95 %: of nine recordings on H200 and H100 hosts whose steps were timed too, it was 0.63 to 1.5 times that (the
#: logarithm scatters by 0.30; Student's t of eight).
_HOST_FACTOR = 2.0
#: On none of them was it more.
_MOST_NS = 5000.0
#: Six steps in a row of CPU processes, without a profiler, miss the mean of the same job's steps some seconds earlier
#: or later by so many times their own scatter at 95 % (124 times, on a machine whose two cores other programs used
#: too); were steps independent it would be 1.05. By more than a factor e they never missed it.
_DRIFT_SCATTERS = 6.0
_DRIFT_STEPS = 6
_MOST_DRIFT = 1.0
#: Hosts of GPUs are slower or faster by this factor from one minute to another at 95 %: blocks of tens of steps of one
#: job, without a profiler, whose host sets the pace (`docs/accuracy.md`, "How often the interval ... holds it").
_HOST_DRIFT = 1.3
#: Where no host counts, recorded steps are longer or shorter than others by up to this share.
_RECORDED_ALONE = 0.03


def interval_ms(of: Significance) -> tuple[float, float] | None:
    """Return the 95 % interval of the step time without the profiler, in ms; None for a single step.

    It holds the scatter of the steps, what the simulation misses of the recorded step, and what recorded and unprofiled
    steps differ where the host does not count. Where no steps were timed, also what the profiler may have cost a
    host of which only this recording is known, and how much slower or faster the same host is at other times. Where
    steps were timed and the simulation does not come to them, it reaches from the one to the other: by so much the
    recording was another job.
    """
    if len(of.slowest_track_ms) < 2:
        return None
    value = of.what_if.corrected_ms + of.what_if.input_not_recorded_ms
    missed = abs(of.what_if.simulated_ms - of.case.slowest_ms)
    if of.timed_ms:
        half = math.hypot(of.chance_ms, missed) + AS_RECORDED * value
        timed_ms = max(of.timed_ms, key=statistics.fmean)
        timed, scatter = statistics.fmean(timed_ms), half_width_ms(timed_ms)
        return max(min(value - half, timed - scatter), 0.0), max(value + half, timed + scatter)
    low, high = _by_profiler_cost(of)
    if all(track.is_cpu for track in of.case.tracks):
        below, above = -value * math.expm1(-_drift(of)), value * math.expm1(_drift(of))
    else:
        fast, slow = _at_other_times(of)
        below, above = math.hypot(of.chance_ms, value - fast), math.hypot(of.chance_ms, slow - value)
    return (
        max(value - math.hypot(below, missed, value - low) - _RECORDED_ALONE * value, 0.0),
        value + math.hypot(above, missed, high - value) + _RECORDED_ALONE * value,
    )


def _at_other_times(of: Significance) -> tuple[float, float]:
    """Return the step, in ms, if all host work and waits, except for devices, are faster and slower."""
    costs, value = of.what_if.corrected, of.what_if.corrected_ms
    shares = (1 / _HOST_DRIFT, _HOST_DRIFT)
    fast, slow = of.what_if.each_step_ms(
        [replace(costs, busy=costs.busy * share, waiting=costs.waiting * share) for share in shares]
    )
    return min(fast, value), max(slow, value)


def _by_profiler_cost(of: Significance) -> tuple[float, float]:
    """Return the shortest and longest step, in ms, that the profiler's unmeasured cost permits."""
    usual, typical = of.what_if.per_event_ns, PROFILER_SHARE_OF_EVENT * typical_ns_per_event(of.what_if.graph)
    least_ns = min(usual, typical or usual) / _HOST_FACTOR
    most_ns = min(max(usual, typical) * _HOST_FACTOR, max(_MOST_NS, usual))
    cheap, dear = of.what_if.at_cost(least_ns), of.what_if.at_cost(most_ns)
    # What hosts do in calls and threads that record nothing slows as their recorded work does.
    host = of.what_if.graph.host
    work = max(float((host.busy - np.minimum(host.slow, host.busy)).sum()), 1.0)
    share = min(float((host.busy - dear.host_corrected.busy).sum()) / work, 1.0)
    unseen = share * (_carried_by_hosts_ms(of) + _in_slow_calls_ms(of))
    value = of.what_if.corrected_ms
    return max(min(dear.corrected_ms - unseen, value), 0.0), max(cheap.corrected_ms, value)


def _carried_by_hosts_ms(of: Significance) -> float:
    """Return the ms per step of communication in which no device and no collective is seen at work."""
    most = 0.0
    for track, found in zip(of.case.tracks, of.case.attribution.tracks, strict=True):
        seen = union(
            Intervals(track.ops.start, track.ops.end), Intervals(track.collectives.start, track.collectives.end)
        )
        alone = subtract(found.parts["communication_transfer"], seen)
        most = max(most, milliseconds(length(alone)) / max(len(found.step_ns), 1))
    return 0.0 if all(track.is_cpu for track in of.case.tracks) else most


def _in_slow_calls_ms(of: Significance) -> float:
    """Return the ms per step that a host spends in slow calls, as in the process that spends most."""
    graph = of.what_if.graph
    slow = np.bincount(graph.host.process, weights=graph.host.slow)
    return milliseconds(float(slow.max(initial=0.0))) / max(graph.steps, 1)


def _drift(of: Significance) -> float:
    """Return by which share (a logarithm) steps of CPU processes differ at other times, at 95 %."""
    steps = of.slowest_track_ms
    few = student_t(len(steps) - 1) / student_t(_DRIFT_STEPS - 1)
    return min(_DRIFT_SCATTERS * max(few, 1.0) * statistics.stdev(steps) / statistics.fmean(steps), _MOST_DRIFT)
