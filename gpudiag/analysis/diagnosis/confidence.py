"""How sure a finding is: the share of variations of the job under which it stays what it is.

The variations: each analysed step left out; the profiler's cost over its interval, where no timed step fixes it; and,
where another finding gains as much, that one first. A finding stays when its amount stays within a quarter of what is
said and, of the first, when it stays first or what comes before it would do instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    AS_RECORDED,
    BEYOND_CHANCE,
    FAIRLY_SURE,
    PROFILER_SCATTER,
    SAME_AMOUNT,
    SURE,
)
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.weigh import Weighed, gains, without_waste
from gpudiag.model.analysis import Confidence


def survival(what_if: WhatIf, found: Sequence[Weighed]) -> list[float]:
    """Of each finding the share of variations that it survives, 0 to 1, in the order in which they are said."""
    if not found:
        return []
    said = np.array([one.gain_ms for one in found])
    varied = [*_without_each_step(what_if, found), *_at_other_costs(what_if, found)]
    kept = np.array([_stays(found, said, amounts) for amounts in varied]).reshape(-1, len(found))
    # Of a single step nothing says how it varies.
    share = kept.mean(axis=0) if len(kept) and what_if.graph.steps > 1 else np.zeros(len(found))
    if len(found) > 1 and found[0].finding.code not in found[1].finding.instead:
        tie = found[1].gain_ms >= (1 - AS_RECORDED) * found[0].gain_ms
        share[0] *= len(kept) / (len(kept) + 1) if tie else 1.0
    return [float(one) for one in share]


def grade(share: float) -> Confidence:
    """In words."""
    if share >= SURE:
        return "high"
    return "medium" if share >= FAIRLY_SURE else "low"


def _stays(found: Sequence[Weighed], said: NDArray[np.float64], amounts: NDArray[np.float64]) -> NDArray[np.bool_]:
    stays = np.abs(amounts - said) <= SAME_AMOUNT * said
    first, now_first = found[0], found[int(np.argmax(amounts))]
    was_behind = first.gain_ms < max(one.gain_ms for one in found)
    if now_first is not first and not was_behind and first.finding.code not in now_first.finding.instead:
        stays[0] &= bool(amounts[0] >= (1 - AS_RECORDED) * amounts.max())
    return stays


def _without_each_step(what_if: WhatIf, found: Sequence[Weighed]) -> list[NDArray[np.float64]]:
    """What each finding gains over all steps but one, for each step."""
    costs = what_if.corrected
    proposals = [one.proposal for one in found]
    clean = without_waste(what_if, proposals, [one.gain_ms for one in found])
    bases = [clean if proposal.kind == "launching" else costs for proposal in proposals]
    before = what_if.steps_ms(bases)
    after = what_if.steps_ms([one.edit(what_if, base) for one, base in zip(proposals, bases, strict=True)])
    by_step = np.array(before) - np.array(after)
    count = by_step.shape[1]
    if count < 2:
        return []
    whole = by_step.sum(axis=1)
    # As said of all steps: scaled where the timed steps are shorter than the replayed ones.
    scale = np.array([one.gain_ms for one in found]) / np.maximum(whole / count, 1e-9)
    return [scale * (whole - by_step[:, left_out]) / (count - 1) for left_out in range(count)]


def _at_other_costs(what_if: WhatIf, found: Sequence[Weighed]) -> list[NDArray[np.float64]]:
    """What each finding gains with the profiler at either end of what it may have cost."""
    if (
        what_if.unprofiled_ms is not None
        or what_if.simulated_ms - what_if.corrected_ms < AS_RECORDED * what_if.simulated_ms
    ):
        return []
    proposals = [one.proposal for one in found]
    ends = (1 - BEYOND_CHANCE * PROFILER_SCATTER, 1 + BEYOND_CHANCE * PROFILER_SCATTER)
    varied = [what_if.at_cost(what_if.per_event_ns * end) for end in ends]
    return [np.array(gains(other, proposals)) for other in varied]
