"""Whether a finding about the hosts' pace could be the recording's own doing, or chance.

Kernels and copies take as long with the profiler as without; what the host does takes longer by a cost that is known to
about 15 % and differs by host, rank and step. Two questions are asked of a finding about hosts before it may ask for
action:

* *Chance.* It must be larger than twice the standard error of the steps that it was found in: of the recorded ones, and
  of the timed ones, which the profiler's cost is set by. On a host whose cores others use too, step times drift:
  timed in one block after another, the same step took 18.1 to 21.5 ms.
* *The recording.* Where the step time was measured without the profiler, that fixes what the host that sets the pace
  does in all, whatever the profiler cost it. It does not fix what another host does, nor what remains of the step once
  a larger cause is gone. What is found there must remain when the profiler is taken to cost so much more as its cost
  is uncertain. Without such a measurement nothing is fixed, and every finding about hosts must.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.diagnosis.drift import mean_error
from gpudiag.diagnosis.rules.rule import WARNING_PERCENT
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpudiag.diagnosis.case import Case
    from gpudiag.diagnosis.replay.simulate import Costs
    from gpudiag.diagnosis.replay.what_if import WhatIf
    from gpudiag.model.analysis import Finding

    Edit = Callable[[Costs], Costs]

#: By this share, one standard deviation, hosts of which the same is known differ in what the profiler costs them.
PROFILER_SCATTER = 0.15
#: A mean so many standard errors above nothing, or a cost so many standard deviations off, is hardly chance.
_BEYOND_CHANCE = 2.0


@dataclass(frozen=True, slots=True)
class Certainty:
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
        chance = _BEYOND_CHANCE * self.error_ms
        if gain_ms < chance:
            return (
                f"{what}, but step times scatter so much that {chance:.1f} ms may be chance. Record more steps, on a "
                "machine that nothing else uses."
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
    def error_ms(self) -> float:
        """Standard error of the step time that the findings are of, in ms."""
        recorded = recorded_error_ms(self.case) * self.what_if.corrected_ms / max(self.what_if.replayed_ms, 1e-9)
        return math.hypot(recorded, self.case.unprofiled_error_ms or 0.0)

    def _at_higher_cost(self, before: Sequence[Edit], edit: Edit) -> float:
        """What the edit gains after those before it if the profiler costs the hosts more than taken."""
        costs = self.what_if.at_cost(self.what_if.per_event_ns * (1 + _BEYOND_CHANCE * PROFILER_SCATTER)).corrected
        for one in before:
            costs = one(costs)
        without, with_it = self.what_if.each_step_ms([costs, edit(costs)])
        return max(without - with_it, 0.0)


def recorded_error_ms(case: Case) -> float:
    """Standard error of the mean recorded step of the slowest lane, in ms; 0 where there is one step only."""
    lanes = [lane.step_ns for lane in case.attribution.lanes if len(lane.step_ns)]
    slowest = max(lanes, key=lambda steps: float(steps.mean()), default=np.empty(0))
    return milliseconds(mean_error(slowest.tolist()))


def _on_hosts(finding: Finding) -> bool:
    return finding.code == "launch-bound" or (finding.code == "straggler" and finding.cause == "launch")
