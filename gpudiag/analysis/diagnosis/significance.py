"""Test whether a finding about hosts is due to chance or to recording.

Kernels and copies take as long with the profiler as without; what the host does takes longer by a cost that is known to
about 15 % and differs by host, rank and step. Two questions are asked of a finding about hosts before it may ask for
action:

* *Chance.* On a host whose cores others use too, step times drift: timed in one block after another, the same step
  took 18.1 to 21.5 ms, and its mean was 1.0 ms above its median. A finding must be there in the median step too, or
  be larger than what the 95 % interval of the mean leaves open: of the recorded steps and of the timed ones, by which
  the profiler's cost is set.
* *The recording.* Where the step time was measured without the profiler, that fixes what the host that sets the pace
  does in all, whatever the profiler cost it. It does not fix what another host does, nor what remains of the step once
  a larger cause is gone. What is found there must remain when the profiler is taken to cost so much more as its cost
  is uncertain. Without such a measurement nothing is fixed, and every finding about hosts must.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import (
    BEYOND_CHANCE,
    MOST,
    PROFILER_SCATTER,
    SLOW_THROUGHOUT,
    WARNING_PERCENT,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Edit
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import alone_waited_for, later_host_ms
from gpudiag.model.analysis import Finding
from gpudiag.statistics import mean_of
from gpudiag.units import NS_PER_US, milliseconds


class Significance(msgspec.Struct, frozen=True):
    """The figures of one case against which findings about hosts are tested."""

    case: Case
    what_if: WhatIf

    def doubt(self, finding: Finding, gain_ms: float, before: Sequence[Edit], edit: Edit) -> str | None:
        """Say why the finding may not exist; None if it does, or asks for no action.

        Args:
            finding: the finding.
            gain_ms: what its edit gains after those before it.
            before: the edits of the waste without which it was judged.
            edit: its own.
        """
        base_ms = self.what_if.corrected_ms
        if not _on_hosts(finding) or 100 * gain_ms < WARNING_PERCENT * base_ms:
            return None
        if gain_ms < self.chance_ms and 100 * (gain_ms - self._skew_ms) < WARNING_PERCENT * base_ms:
            return (
                f"{_fixing(finding)} would save {gain_ms:.1f} ms per step, but hardly in the median step, and steps "
                f"vary so much that {self.chance_ms:.1f} ms may be chance. Record more steps, on a machine that "
                "nothing else uses."
            )
        if finding.code == "straggler" and (words := self._recorded_so(finding, gain_ms)):
            return words
        if self.case.unprofiled_ms is not None and not before:
            return None
        left_ms = self._at_higher_cost(before, edit)
        if 100 * left_ms >= WARNING_PERCENT * base_ms:
            return None
        higher_us = self.what_if.per_event_ns * (1 + BEYOND_CHANCE * PROFILER_SCATTER) / NS_PER_US
        remedy = (
            "Time the same steps without profiling too, as `gpudiag profile` does."
            if self.case.unprofiled_ms is None
            else "Fix the larger findings and record again."
        )
        return (
            f"If the profiler adds {higher_us:.1f} µs per event, {_fixing(finding)} saves only {left_ms:.1f} ms per "
            f"step; otherwise, at the estimated {self._per_event_us:.1f} µs, {gain_ms:.1f} ms. {remedy}"
        )

    @property
    def _per_event_us(self) -> float:
        return self.what_if.per_event_ns / NS_PER_US

    def _recorded_so(self, finding: Finding, saved_ms: float) -> str:
        """Say why hosts may differ only because they are recorded; "" if they do not.

        A rank that does the same as its peers, slower by less than one that has lost its core, may as well be one whose
        recording cost more: where recording took more of the step than the finding is worth, nothing tells the two
        apart but the steps that were timed without it.
        """
        gain_ms = finding.recoverable_ms_per_step or 0.0
        ranks = self.what_if.graph.ranks.values()
        timed = later_host_ms(self.case.run, ranks, finding.ranks)
        if timed is not None:
            differ = timed >= gain_ms / 2 or alone_waited_for(self.case.run, ranks, finding.ranks, ahead_from=MOST)
            if differ:
                return ""
            return (
                f"{_fixing(finding)} would save {saved_ms:.1f} ms per step, but in the steps timed without "
                "profiling the ranks' CPUs differ less."
            )
        if finding.cause == "launch" and len(finding.ranks) > 1 and 2 * len(finding.ranks) >= len(ranks):
            return self._both_readings(finding, saved_ms, "as many CPUs are slow as are not")
        if self.what_if.simulated_ms - self.what_if.corrected_ms < gain_ms:
            return ""
        if self._does_more(finding.ranks, gain_ms):
            return ""
        return self._both_readings(finding, saved_ms, "its CPU does no more work than the others")

    def _both_readings(self, finding: Finding, saved_ms: float, why: str) -> str:
        """Say what the finding is worth if the profiler slows all ranks alike, and if it slows these ranks more."""
        added = self.what_if.simulated_ms - self.what_if.corrected_ms
        ranks = f"rank{'s' * (len(finding.ranks) > 1)} {', '.join(map(str, finding.ranks))}"
        return (
            f"If the profiler adds {self._per_event_us:.1f} µs per event on every rank, {_fixing(finding)} saves "
            f"{saved_ms:.1f} ms per step; otherwise, if it slows {ranks} more (it adds "
            f"{added:.1f} ms in all), 0.0 ms: {why}. "
            "Use `gpudiag profile`, which also times the steps without profiling."
        )

    def _does_more(self, ranks: tuple[int, ...], gain_ms: float) -> bool:
        """Return whether a host records more events than most, or is as slow as one without a core."""
        host, steps = self.what_if.graph.host, max(self.what_if.graph.steps, 1)
        ranked = self.what_if.graph.ranks
        busy = {rank: milliseconds(float(host.busy[host.process == q].sum()) / steps) for q, rank in ranked.items()}
        events = {rank: float(host.events[host.process == q].sum()) / steps for q, rank in ranked.items()}
        usual_busy, usual_events = (statistics.median_low(of.values()) for of in (busy, events))
        each_ms = usual_busy / max(usual_events, 1.0)
        return any(
            (events[rank] - usual_events) * each_ms >= gain_ms / 2 or busy[rank] >= SLOW_THROUGHOUT * usual_busy
            for rank in ranks
            if rank in busy
        )

    @property
    def chance_ms(self) -> float:
        """Return half the 95 % interval of the step time due to scatter, in ms."""
        recorded = half_width_ms(self.slowest_track_ms) * self._shortened
        timed = max((half_width_ms(one) for one in self.timed_ms), default=0.0)
        return math.hypot(recorded, timed)

    @property
    def _skew_ms(self) -> float:
        """Return by how much the mean of the steps is above their median, in ms."""
        if self.timed_ms:
            return max(_skew(one) for one in self.timed_ms)
        return _skew(self.slowest_track_ms) * self._shortened

    @property
    def slowest_track_ms(self) -> list[float]:
        """Return the recorded steps of the slowest device, in ms."""
        tracks = [track.step_ns for track in self.case.attribution.tracks if len(track.step_ns)]
        slowest = max(tracks, key=lambda steps: float(steps.mean()), default=np.empty(0))
        return [milliseconds(float(step)) for step in slowest]

    @property
    def timed_ms(self) -> list[tuple[float, ...]]:
        """Return each rank's unprofiled steps, in ms."""
        ranks = () if self.case.run is None else self.case.run.ranks
        return [rank.unprofiled.step_ms for rank in ranks if rank.unprofiled is not None]

    @property
    def _shortened(self) -> float:
        return self.what_if.corrected_ms / max(self.what_if.simulated_ms, 1e-9)

    def _at_higher_cost(self, before: Sequence[Edit], edit: Edit) -> float:
        """Return what the edit saves after those before it if the profiler costs more than estimated."""
        higher = self.what_if.at_cost(self.what_if.per_event_ns * (1 + BEYOND_CHANCE * PROFILER_SCATTER))
        costs = higher.corrected
        for step in before:
            costs = step(higher, costs)
        without, with_it = higher.each_step_ms([costs, edit(higher, costs)])
        return max(without - with_it, 0.0)


def half_width_ms(step_ms: Sequence[float]) -> float:
    """Return half the 95 % interval of the mean of these steps, in ms; 0 for a single step."""
    if len(step_ms) < 2:
        return 0.0
    return mean_of(step_ms, as_measured=True).half_width


def _fixing(finding: Finding) -> str:
    return f"fixing {finding.code} ({finding.cause})"


def _skew(values: Sequence[float]) -> float:
    return statistics.fmean(values) - statistics.median(values)


def _on_hosts(finding: Finding) -> bool:
    return finding.code == "launch-bound" or (finding.code == "straggler" and finding.cause in {"launch", "operators"})
