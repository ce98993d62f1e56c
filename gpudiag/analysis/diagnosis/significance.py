"""How sure the step time without the profiler is, and whether a finding about hosts is chance or the recording's doing.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.replay.simulate import Costs
from gpudiag.analysis.diagnosis.replay.what_if import WhatIf
from gpudiag.analysis.diagnosis.rules.rule import WARNING_PERCENT
from gpudiag.model.analysis import Finding
from gpudiag.statistics import mean_of
from gpudiag.units import milliseconds

Edit = Callable[[Costs], Costs]

#: By this share, one standard deviation, hosts of which the same is known differ in what the profiler costs them.
PROFILER_SCATTER = 0.15
#: A cost that is off by so many standard deviations is hardly chance.
_BEYOND_CHANCE = 2.0
#: By this share of a step that only the device sets the pace of, recorded and timed steps differ: by -1.8 to +2.0 % in
#: fourteen jobs.
_DEVICE_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Significance:
    """What a finding about the hosts of one case is held against."""

    case: Case
    what_if: WhatIf

    def doubt(self, finding: Finding, gain_ms: float, before: Sequence[Edit], edit: Edit) -> str | None:
        """Why the finding may not be there at all, in words; None where that is not so, or it asks for no action.

        Args:
            finding: the finding.
            gain_ms: what its edit gains after those of the larger findings.
            before: the edits of the larger findings.
            edit: its own.
        """
        base_ms = self.what_if.corrected_ms
        if not _on_hosts(finding) or 100 * gain_ms < WARNING_PERCENT * base_ms:
            return None
        what = f"{finding.code} ({finding.cause}) would gain {gain_ms:.1f} ms of the step"
        if gain_ms < self.chance_ms and 100 * (gain_ms - self._skew_ms) < WARNING_PERCENT * base_ms:
            return (
                f"{what}, but hardly in the median step, and the mean scatters so much that {self.chance_ms:.1f} ms "
                "may be chance. Record more steps, on a machine that nothing else uses."
            )
        if self.case.unprofiled_ms is not None and not before:
            return None
        left_ms = self._at_higher_cost(before, edit)
        if 100 * left_ms >= WARNING_PERCENT * base_ms:
            return None
        added = self.what_if.replayed_ms - base_ms
        return (
            f"{what}, but recording made it {added:.1f} ms longer, and where that cost the hosts "
            f"{100 * _BEYOND_CHANCE * PROFILER_SCATTER:.0f} % more than taken, {left_ms:.1f} ms are left of the gain. "
            + (
                "Time the same steps without the profiler too, as `gpudiag profile` does."
                if self.case.unprofiled_ms is None
                else "Mend the larger findings and record again."
            )
        )

    @property
    def chance_ms(self) -> float:
        """Half the 95 % interval of the step time that the findings are of, in ms, as far as steps scatter."""
        recorded = _half_width_ms(self._slowest_lane_ms) * self._shortened
        timed = max((_half_width_ms(one) for one in self._timed_ms), default=0.0)
        return math.hypot(recorded, timed)

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Where the step time without the profiler lies, at 95 %, in ms; None of a single step.

        By the scatter of the steps, by what the profiler's cost is uncertain by where it was not measured, and by what
        recorded and timed steps differ where neither counts.
        """
        if len(self._slowest_lane_ms) < 2:
            return None
        value = self.what_if.corrected_ms
        added = 0.0 if self._timed_ms else max(self.what_if.replayed_ms - value, 0.0)
        half = math.hypot(self.chance_ms, _BEYOND_CHANCE * PROFILER_SCATTER * added) + _DEVICE_SHARE * value
        return max(value - half, 0.0), value + half

    @property
    def _skew_ms(self) -> float:
        """By how much the mean of the steps is above their median."""
        if self._timed_ms:
            return max(_skew(one) for one in self._timed_ms)
        return _skew(self._slowest_lane_ms) * self._shortened

    @property
    def _slowest_lane_ms(self) -> list[float]:
        lanes = [lane.step_ns for lane in self.case.attribution.lanes if len(lane.step_ns)]
        slowest = max(lanes, key=lambda steps: float(steps.mean()), default=np.empty(0))
        return [milliseconds(float(step)) for step in slowest]

    @property
    def _timed_ms(self) -> list[tuple[float, ...]]:
        ranks = () if self.case.run is None else self.case.run.ranks
        return [rank.unprofiled.step_ms for rank in ranks if rank.unprofiled is not None]

    @property
    def _shortened(self) -> float:
        return self.what_if.corrected_ms / max(self.what_if.replayed_ms, 1e-9)

    def _at_higher_cost(self, before: Sequence[Edit], edit: Edit) -> float:
        """What the edit gains after those before it if the profiler costs the hosts more than taken."""
        costs = self.what_if.at_cost(self.what_if.per_event_ns * (1 + _BEYOND_CHANCE * PROFILER_SCATTER)).corrected
        for step in before:
            costs = step(costs)
        without, with_it = self.what_if.each_step_ms([costs, edit(costs)])
        return max(without - with_it, 0.0)


def _half_width_ms(step_ms: Sequence[float]) -> float:
    if len(step_ms) < 2:
        return 0.0
    return mean_of(step_ms, as_measured=True).half_width


def _skew(values: Sequence[float]) -> float:
    return statistics.fmean(values) - statistics.median(values)


def _on_hosts(finding: Finding) -> bool:
    return finding.code == "launch-bound" or (finding.code == "straggler" and finding.cause == "launch")
