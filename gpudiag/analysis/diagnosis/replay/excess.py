"""By how much a rank's part of the step is above what its peers need, and whether that is more than chance."""

from __future__ import annotations

import msgspec

from gpudiag.statistics import mean_of

#: A mean of a few steps this many standard errors above nothing is hardly chance.
_BEYOND_CHANCE = 2.0


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """By how much each rank's part of the step is above what its peers need.

    Attributes:
        part: which part.
        by_rank: rank → ns per step, above the lower median of the ranks' totals.
        by_step: rank → ns of each step, above the lower median of the ranks' in that step.
    """

    part: str
    by_rank: dict[int, float]
    by_step: dict[int, tuple[float, ...]]

    def steady(self, rank: int) -> bool:
        """Whether the rank is above its peers step after step: its mean excess is twice what chance would leave."""
        steps = self.by_step[rank]
        if len(steps) < 2:
            return False
        excess = mean_of(steps, as_measured=True)
        return excess.value >= _BEYOND_CHANCE * excess.standard_error
