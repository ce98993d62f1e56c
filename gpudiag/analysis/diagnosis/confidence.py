"""Grade a finding by the share of variations of the job under which it stays the same.

The variations: each analysed step left out; the profiler's cost at both ends of its interval, unless unprofiled steps
fix it; and, if the second finding saves as much as the first, that one first. A finding stays the same if its savings
stay within a quarter of what is reported and if the first stays first, or is replaceable by what comes before it.
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
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, savings_ms, without_waste
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Confidence


def survival(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[float]:
    """Return for each finding, in the order reported, the share of variations that it survives, 0 to 1."""
    if not findings:
        return []
    reported = np.array([scored.savings_ms for scored in findings])
    variations = [*_without_each_step(what_if, findings), *_at_other_costs(what_if, findings)]
    kept = np.array([_stays(findings, reported, savings) for savings in variations]).reshape(-1, len(findings))
    # A single step does not show how steps vary.
    share = kept.mean(axis=0) if len(kept) and what_if.graph.steps > 1 else np.zeros(len(findings))
    if len(findings) > 1 and findings[0].finding.code not in findings[1].finding.instead:
        tie = findings[1].savings_ms >= (1 - AS_RECORDED) * findings[0].savings_ms
        share[0] *= len(kept) / (len(kept) + 1) if tie else 1.0
    return share.tolist()


def grade(share: float) -> Confidence:
    """Name the confidence of a share of variations survived."""
    if share >= SURE:
        return "high"
    return "medium" if share >= FAIRLY_SURE else "low"


def _stays(
    findings: Sequence[ScoredFinding], reported: NDArray[np.float64], savings: NDArray[np.float64]
) -> NDArray[np.bool_]:
    stays = np.abs(savings - reported) <= SAME_AMOUNT * reported
    first, now_first = findings[0], findings[int(np.argmax(savings))]
    was_behind = first.savings_ms < max(scored.savings_ms for scored in findings)
    if now_first is not first and not was_behind and first.finding.code not in now_first.finding.instead:
        stays[0] &= bool(savings[0] >= (1 - AS_RECORDED) * savings.max())
    return stays


def _without_each_step(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[NDArray[np.float64]]:
    """Return, for each step left out, what each finding saves over the other steps."""
    costs = what_if.corrected
    proposals = [scored.proposal for scored in findings]
    clean = without_waste(what_if, proposals, [scored.savings_ms for scored in findings])
    bases = [clean if proposal.kind == "launching" else costs for proposal in proposals]
    before = what_if.steps_ms(bases)
    after = what_if.steps_ms([p.edit(what_if, base) for p, base in zip(proposals, bases, strict=True)])
    by_step = np.array(before) - np.array(after)
    count = by_step.shape[1]
    if count < 2:
        return []
    whole = by_step.sum(axis=1)
    # Scaled to the reported savings, because unprofiled steps may be shorter than simulated ones.
    scale = np.array([scored.savings_ms for scored in findings]) / np.maximum(whole / count, 1e-9)
    return [scale * (whole - by_step[:, left_out]) / (count - 1) for left_out in range(count)]


def _at_other_costs(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[NDArray[np.float64]]:
    """Return the savings of each finding with the profiler's cost at either end of its interval."""
    if (
        what_if.unprofiled_ms is not None
        or what_if.simulated_ms - what_if.corrected_ms < AS_RECORDED * what_if.simulated_ms
    ):
        return []
    proposals = [scored.proposal for scored in findings]
    ends = (1 - BEYOND_CHANCE * PROFILER_SCATTER, 1 + BEYOND_CHANCE * PROFILER_SCATTER)
    return [np.array(savings_ms(what_if.at_cost(what_if.per_event_ns * end), proposals)) for end in ends]
