"""Test whether a finding about hosts may be due to chance or to recording, and bound the unprofiled step time.

The profiler slows host work, but not kernels and copies. The profiler's cost is known to about 15 % and differs between
hosts, ranks and steps. A finding about hosts asks for action only if it passes two tests:

* *Chance.* Step times drift on a host whose cores are shared: in successive blocks the same step took 18.1 to 21.5 ms,
  and its mean was 1.0 ms above its median. The savings must remain for the median step, or exceed half the width of the
  mean's 95 % interval. The interval combines the scatter of recorded and unprofiled steps, because the profiler's cost
  is estimated from both.
* *Recording.* An unprofiled step time determines the total work of the host that sets the pace, whatever the profiler's
  cost is. An unprofiled step time determines neither the work of other hosts nor the step time after waste is removed.
  A finding that depends on such work or on such a step time must hold for the highest likely cost of the profiler.
  Without unprofiled steps, every finding about hosts must hold for the highest likely cost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import (
    AS_RECORDED,
    BEYOND_CHANCE,
    MOST,
    PROFILER_SCATTER,
    PROFILER_SHARE_OF_EVENT,
    SLOW_THROUGHOUT,
    WARNING_PERCENT,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Edit
from gpudiag.analysis.diagnosis.simulation.profiler_cost import typical_ns_per_event
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import alone_waited_for, later_host_ms
from gpudiag.intervals import Intervals, length, subtract, union
from gpudiag.model.analysis import Finding
from gpudiag.statistics import mean_of, student_t
from gpudiag.units import NS_PER_US, milliseconds

#: Factor by which the profiler's cost per event may differ, at 95 %, from half of the host's median time per event.
#: Measured on nine recordings on H200 and H100 hosts with unprofiled steps: the cost was 0.63 to 1.5 times the estimate
#: (standard deviation of its logarithm: 0.30; Student's t with eight degrees of freedom).
_COST_FACTOR = 2.0
#: Highest cost of the profiler per event, in ns, in the nine recordings of `_COST_FACTOR`.
_HIGHEST_COST_NS = 5000.0
#: Drift of the mean of six steps of CPU processes at 95 %, as a multiple of the steps' standard deviation. Measured
#: without a profiler in 124 comparisons with the mean step of the same job some seconds earlier or later, on a machine
#: whose two cores were shared with other programs. For independent steps, the multiple would be 1.05. No two means
#: differed by a factor of e or more, so that the logarithm of the drift is limited to `_MOST_DRIFT`.
_DRIFT_SCATTERS = 6.0
_DRIFT_STEPS = 6
_MOST_DRIFT = 1.0
#: Factor by which the speed of GPU hosts drifts within minutes, at 95 %. Measured without a profiler on blocks of tens
#: of steps of one job whose host sets the pace (`docs/accuracy.md`, "How often the interval ... holds it").
_HOST_DRIFT = 1.3
#: Largest difference between recorded and unprofiled steps, as a share, if the host does not set the pace.
_RECORDING_SHARE = 0.03


class Significance(msgspec.Struct, frozen=True):
    """Tests of findings about the hosts of one case."""

    case: Case
    what_if: WhatIf

    def doubt(self, finding: Finding, gain_ms: float, before: Sequence[Edit], edit: Edit) -> str | None:
        """Return the reason to doubt the finding, or None. Only findings about hosts are tested, and only if large.

        Args:
            finding: the finding.
            gain_ms: savings of `edit`, in ms per step, after the edits of `before`.
            before: edits that remove waste, applied before `edit`.
            edit: the finding's edit.
        """
        base_ms = self.what_if.corrected_ms
        if not _is_about_hosts(finding) or 100 * gain_ms < WARNING_PERCENT * base_ms:
            return None
        if gain_ms < self.chance_ms and 100 * (gain_ms - self._skew_ms) < WARNING_PERCENT * base_ms:
            return (
                f"{_fixing(finding)} would save {gain_ms:.1f} ms per step, but hardly in the median step, and steps "
                f"vary so much that {self.chance_ms:.1f} ms may be chance. Record more steps, on a machine that "
                "nothing else uses."
            )
        if finding.code == "straggler" and (doubt := self._recording_doubt(finding, gain_ms)):
            return doubt
        if self.case.unprofiled_ms is not None and not before:  # the host's work follows from the unprofiled step time
            return None
        left_ms = self._saving_at_higher_cost(before, edit)
        if 100 * left_ms >= WARNING_PERCENT * base_ms:
            return None
        higher_us = self.what_if.per_event_ns * (1 + BEYOND_CHANCE * PROFILER_SCATTER) / NS_PER_US
        remedy = (
            f"Also time unprofiled steps{', as `gpudiag profile` does' if self._can_be_profiled else ''}."
            if self.case.unprofiled_ms is None
            else "Fix the larger findings and record again."
        )
        return (
            f"If the profiler adds {higher_us:.1f} µs per event, {_fixing(finding)} saves only {left_ms:.1f} ms per "
            f"step; otherwise, at the estimated {self._per_event_us:.1f} µs, {gain_ms:.1f} ms. {remedy}"
        )

    @property
    def _can_be_profiled(self) -> bool:
        """Return whether `gpudiag profile` trains with the job's framework."""
        return self.case.timeline.framework != "jax"

    @property
    def _per_event_us(self) -> float:
        return self.what_if.per_event_ns / NS_PER_US

    def _recording_doubt(self, finding: Finding, saved_ms: float) -> str:
        """Return the reason why the profiler may have caused the difference between hosts; "" if there is none.

        A rank may do the same work as its peers and be slower because recording it costs more. If recording takes more
        of the step than the finding saves, only unprofiled steps can distinguish a slow host from a costly recording. A
        host that lost its core is slower than recording can explain. `saved_ms` is the simulated part of the savings.
        """
        gain_ms = finding.recoverable_ms_per_step or 0.0
        ranks = self.what_if.graph.ranks.values()
        # Largest excess of these hosts' unprofiled steps over the lower median of all hosts, in ms.
        timed = later_host_ms(self.case.run, ranks, finding.ranks)
        if timed is not None:
            # Hosts differ if the excess is half of the savings or more, or if only the other hosts ran far ahead.
            differ = timed >= gain_ms / 2 or alone_waited_for(self.case.run, ranks, finding.ranks, ahead_from=MOST)
            if differ:
                return ""
            return (
                f"{_fixing(finding)} would save {saved_ms:.1f} ms per step, but the ranks' CPUs differ less in "
                "the unprofiled steps."
            )
        # Traces alone do not show that half of the hosts are stragglers.
        if finding.cause == "launch" and len(finding.ranks) > 1 and 2 * len(finding.ranks) >= len(ranks):
            return self._both_outcomes(finding, saved_ms, "half of the CPUs or more are slow")
        if self.what_if.simulated_ms - self.what_if.corrected_ms < gain_ms:
            return ""
        if self._does_more_work(finding.ranks, gain_ms):
            return ""
        return self._both_outcomes(finding, saved_ms, "its CPU does no more work than the others")

    def _both_outcomes(self, finding: Finding, saved_ms: float, why: str) -> str:
        """Return a message with the savings if the profiler slows all ranks alike (`saved_ms`), or late ranks more (0).

        `why` is the reason for which the second case is possible.
        """
        added = self.what_if.simulated_ms - self.what_if.corrected_ms
        ranks = f"rank{'s' * (len(finding.ranks) > 1)} {', '.join(map(str, finding.ranks))}"
        return (
            f"If the profiler adds {self._per_event_us:.1f} µs per event on every rank, {_fixing(finding)} saves "
            f"{saved_ms:.1f} ms per step; otherwise, if it slows {ranks} more (it adds "
            f"{added:.1f} ms in all), 0.0 ms: {why}. "
            + ("Use `gpudiag profile`, which also times" if self._can_be_profiled else "Also time")
            + " unprofiled steps."
        )

    def _does_more_work(self, ranks: tuple[int, ...], gain_ms: float) -> bool:
        """Return whether one of these ranks' hosts records more events than most hosts, or is far slower.

        The additional events count if they explain half of the savings, `gain_ms` per step.
        """
        host, steps = self.what_if.graph.host, max(self.what_if.graph.steps, 1)
        ranked = self.what_if.graph.ranks
        busy = {
            rank: milliseconds(float(host.busy[host.process == process].sum()) / steps)
            for process, rank in ranked.items()
        }
        events = {rank: float(host.events[host.process == process].sum()) / steps for process, rank in ranked.items()}
        usual_busy, usual_events = (statistics.median_low(by_rank.values()) for by_rank in (busy, events))
        event_ms = usual_busy / max(usual_events, 1.0)
        return any(
            (events[rank] - usual_events) * event_ms >= gain_ms / 2 or busy[rank] >= SLOW_THROUGHOUT * usual_busy
            for rank in ranks
            if rank in busy
        )

    @property
    def chance_ms(self) -> float:
        """Return the half-width of the mean step's 95 % interval, in ms, for recorded and unprofiled steps together."""
        recorded = half_width_ms(self.slowest_track_ms) * self._shortened
        timed = max((half_width_ms(steps) for steps in self.timed_ms), default=0.0)
        return math.hypot(recorded, timed)

    @property
    def _skew_ms(self) -> float:
        """Return the excess of the mean step over the median step, in ms."""
        if self.timed_ms:
            return max(_skew(steps) for steps in self.timed_ms)
        return _skew(self.slowest_track_ms) * self._shortened

    @property
    def slowest_track_ms(self) -> list[float]:
        """Return the length of each recorded step of the slowest device, in ms."""
        tracks = [track.step_ns for track in self.case.attribution.tracks if len(track.step_ns)]
        slowest = max(tracks, key=lambda steps: float(steps.mean()), default=np.empty(0))
        return [milliseconds(float(step)) for step in slowest]

    @property
    def timed_ms(self) -> list[tuple[float, ...]]:
        """Return the lengths of each rank's unprofiled steps, in ms."""
        ranks = () if self.case.run is None else self.case.run.ranks
        return [rank.unprofiled.step_ms for rank in ranks if rank.unprofiled is not None]

    @property
    def _shortened(self) -> float:
        """Return the corrected step time / the simulated step time, which includes the profiler's cost."""
        return self.what_if.corrected_ms / max(self.what_if.simulated_ms, 1e-9)

    def _saving_at_higher_cost(self, before: Sequence[Edit], edit: Edit) -> float:
        """Return the savings of the edit, in ms, at the profiler's highest likely cost."""
        higher = self.what_if.at_cost(self.what_if.per_event_ns * (1 + BEYOND_CHANCE * PROFILER_SCATTER))
        costs = higher.corrected
        for earlier in before:
            costs = earlier(higher, costs)
        unedited_ms, edited_ms = higher.each_step_ms([costs, edit(higher, costs)])
        return max(unedited_ms - edited_ms, 0.0)


def half_width_ms(step_ms: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean step, in ms; 0 for a single step."""
    if len(step_ms) < 2:
        return 0.0
    return mean_of(step_ms, as_measured=True).half_width


def _fixing(finding: Finding) -> str:
    return f"fixing {finding.code} ({finding.cause})"


def _skew(values: Sequence[float]) -> float:
    return statistics.fmean(values) - statistics.median(values)


def _is_about_hosts(finding: Finding) -> bool:
    return finding.code == "launch-bound" or (finding.code == "straggler" and finding.cause in {"launch", "operators"})


def interval_ms(significance: Significance) -> tuple[float, float] | None:
    """Return (low, high) of the 95 % interval of the step time without the profiler, in ms; None for a single step.

    The interval includes the scatter of the steps, the error of the simulation against the recorded step, and the usual
    difference between recorded and unprofiled steps. Without unprofiled steps, the interval also includes the
    uncertainty of the profiler's cost and the drift of the host. With unprofiled steps, the interval includes both
    their mean and the simulated step, because the job may have run differently while it was recorded.
    """
    case, what_if, chance = significance.case, significance.what_if, significance.chance_ms
    if len(significance.slowest_track_ms) < 2:
        return None
    value = what_if.corrected_ms + what_if.input_not_recorded_ms
    missed = abs(what_if.simulated_ms - case.slowest_ms)
    if significance.timed_ms:
        half = math.hypot(chance, missed) + AS_RECORDED * value  # independent errors add up by their squares
        timed_ms = max(significance.timed_ms, key=statistics.fmean)  # of the slowest rank
        timed, scatter = statistics.fmean(timed_ms), half_width_ms(timed_ms)
        return max(min(value - half, timed - scatter), 0.0), max(value + half, timed + scatter)
    low, high = _profiler_cost_range_ms(case, what_if)
    if all(track.is_cpu for track in case.tracks):
        drift = _cpu_drift(significance.slowest_track_ms)  # includes the scatter of the steps
        below, above = -value * math.expm1(-drift), value * math.expm1(drift)
    else:
        fast, slow = _host_drift_ms(what_if)
        below, above = math.hypot(chance, value - fast), math.hypot(chance, slow - value)
    return (
        max(value - math.hypot(below, missed, value - low) - _RECORDING_SHARE * value, 0.0),
        value + math.hypot(above, missed, high - value) + _RECORDING_SHARE * value,
    )


def _host_drift_ms(what_if: WhatIf) -> tuple[float, float]:
    """Return the step times, in ms, if the usual drift (shortens, lengthens) host work and untraced host time."""
    costs, value = what_if.corrected, what_if.corrected_ms
    shares = (1 / _HOST_DRIFT, _HOST_DRIFT)
    fast, slow = what_if.each_step_ms(
        [replace(costs, busy=costs.busy * share, waiting=costs.waiting * share) for share in shares]
    )
    return min(fast, value), max(slow, value)


def _profiler_cost_range_ms(case: Case, what_if: WhatIf) -> tuple[float, float]:
    """Return (shortest, longest) step time, in ms, for the range of possible costs of the profiler."""
    usual, typical = what_if.per_event_ns, PROFILER_SHARE_OF_EVENT * typical_ns_per_event(what_if.graph)
    # `typical` is 0 without events.
    least_ns = min(usual, typical or usual) / _COST_FACTOR
    most_ns = min(max(usual, typical) * _COST_FACTOR, max(_HIGHEST_COST_NS, usual))
    at_least, at_most = what_if.at_cost(least_ns), what_if.at_cost(most_ns)
    # The profiler slows unrecorded host work (slow calls, communication) by the same share as recorded work.
    host = what_if.graph.host
    work = max(float((host.busy - np.minimum(host.slow, host.busy)).sum()), 1.0)
    share = min(float((host.busy - at_most.host_corrected.busy).sum()) / work, 1.0)
    unrecorded_ms = share * (_host_communication_ms(case) + _slow_calls_ms(what_if))
    value = what_if.corrected_ms
    return max(min(at_most.corrected_ms - unrecorded_ms, value), 0.0), max(at_least.corrected_ms, value)


def _host_communication_ms(case: Case) -> float:
    """Return the ms per step of communication in which no device op or collective runs, the maximum over tracks."""
    if all(track.is_cpu for track in case.tracks):
        return 0.0
    longest_ms = 0.0
    for track, attributed in zip(case.tracks, case.attribution.tracks, strict=True):
        running = union(
            Intervals(track.ops.start, track.ops.end), Intervals(track.collectives.start, track.collectives.end)
        )
        alone = subtract(attributed.parts["communication_transfer"], running)
        longest_ms = max(longest_ms, milliseconds(length(alone)) / max(len(attributed.step_ns), 1))
    return longest_ms


def _slow_calls_ms(what_if: WhatIf) -> float:
    """Return the ms per step in slow calls, the maximum over processes."""
    slow = np.bincount(what_if.graph.host.process, weights=what_if.graph.host.slow)
    return milliseconds(float(slow.max(initial=0.0))) / max(what_if.graph.steps, 1)


def _cpu_drift(steps_ms: Sequence[float]) -> float:
    """Return the natural logarithm of the factor by which the steps of CPU processes drift, at 95 %.

    Fewer steps than `_DRIFT_STEPS` widen the drift (Student's t); more steps do not narrow it.
    """
    few = student_t(len(steps_ms) - 1) / student_t(_DRIFT_STEPS - 1)
    return min(_DRIFT_SCATTERS * max(few, 1.0) * statistics.stdev(steps_ms) / statistics.fmean(steps_ms), _MOST_DRIFT)
