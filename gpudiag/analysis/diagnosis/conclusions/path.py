"""Compute the order of fixes: the step after each fix in turn, and the bucket with most of it then."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.analysis.diagnosis.conclusions.likely import LIKELY
from gpudiag.analysis.diagnosis.rules.rule import notable
from gpudiag.analysis.diagnosis.scoring import ScoredFinding
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Fix

#: The bucket that holds a finding's time.
_BUCKET = {code: bucket for bucket, (code, *_) in LIKELY.items()}


def path_of_fixes(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> tuple[Fix, ...]:
    """Return the fixes in the reported order, without fixes that save nothing after the previous ones."""
    costs, chain = what_if.corrected, []
    for scored in findings:
        costs = scored.proposal.edit(what_if, costs)
        chain.append(costs)
    now = what_if.now_ms
    kept: list[tuple[ScoredFinding, float]] = []
    saved = 0.0
    for scored, together in zip(findings, what_if.savings_ms(chain), strict=True):
        if notable(together - saved, now):
            kept.append((scored, now - together))
            saved = together
    after = [_BUCKET.get(scored.finding.code, "compute") for scored, _ in kept[1:]]
    return tuple(
        Fix(code=scored.finding.code, ranks=scored.finding.ranks, cause=scored.finding.cause, step_ms=ms, then=then)
        for (scored, ms), then in zip(kept, [*after, "compute"], strict=False)
    )
