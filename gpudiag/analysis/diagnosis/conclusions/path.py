"""The path of fixes: the step after each in turn, and what takes most of it then."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.analysis.diagnosis.conclusions.likely import LIKELY
from gpudiag.analysis.diagnosis.rules.rule import notable
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.weigh import Weighed
from gpudiag.model.analysis import Fix

#: The bucket that a finding's time stands in.
_BUCKET = {code: bucket for bucket, (code, *_) in LIKELY.items()}


def path_of_fixes(what_if: WhatIf, found: Sequence[Weighed]) -> tuple[Fix, ...]:
    """The findings in the order in which they are said, without those that gain nothing after the ones before them."""
    costs, chain = what_if.corrected, []
    for one in found:
        costs = one.proposal.edit(what_if, costs)
        chain.append(costs)
    now = what_if.now_ms
    kept: list[tuple[Weighed, float]] = []
    reached = 0.0
    for one, gain in zip(found, what_if.savings_ms(chain), strict=True):
        if notable(gain - reached, now):
            kept.append((one, now - gain))
            reached = gain
    after = [_BUCKET.get(one.finding.code, "compute") for one, _ in kept[1:]]
    return tuple(
        Fix(code=one.finding.code, ranks=one.finding.ranks, cause=one.finding.cause, step_ms=step_ms, then=then)
        for (one, step_ms), then in zip(kept, [*after, "compute"], strict=False)
    )
