"""Score proposals: estimate the savings of each fix, the order of the fixes, and the confidence in both.

Savings alone do not determine which fix comes first. Worked example: per step, the host spends 30 ms in the loader and
15 ms on launching, and the device needs 31 ms. Removing only the loader saves 14 ms, and removing only launching saves
14 ms too. But launching cannot be removed, and after the loader is fixed, the device's work hides launching. Therefore
waste, which a fix can remove, is scored in the recorded job. Launch overhead is scored in three jobs: the recorded job,
the job without waste, and the job without waste and communication. Of the savings in three jobs, the smallest count.

Two kinds of waste may hide each other: if the loader is late and the host also waits for the device, either fix alone
makes the device set the pace. Both are findings with their own savings, and each finding names the other finding in
`instead`.

The confidence in a finding is the share of variations that it survives. A variation leaves out one analysed step. If
there are no unprofiled steps, two more variations set the profiler's cost to the lower and the upper end of its
interval. If the second finding saves as much as the first, one more variation exchanges the two findings. A finding
survives if its savings stay within a quarter of the reported savings. The first finding must also stay first, unless
the finding that becomes first names the reported first finding in `instead`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import (
    AS_RECORDED,
    BEYOND_CHANCE,
    CLEARLY_MORE,
    FAIRLY_SURE,
    PROFILER_SCATTER,
    SAME_AMOUNT,
    SURE,
    WARNING_PERCENT,
    WORTH_FIRST,
)
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.rules.rule import Proposal, notable
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.graph import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import exposed_input_by_rank, later_input_ms, typical_rank
from gpudiag.model.analysis import UNTRUSTED_CODES, Confidence, Finding, Validity
from gpudiag.statistics import mean_of


class ScoredFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that saves enough to be a finding.

    Attributes:
        proposal: the cause and the edit that removes the cause.
        finding: the finding that describes the proposal.
        savings_ms: ms per step saved without the cause; for launch overhead, in a job without waste.
    """

    proposal: Proposal
    finding: Finding
    savings_ms: float


def score(
    what_if: WhatIf, proposals: Sequence[Proposal], significance: Significance
) -> tuple[list[ScoredFinding], list[Validity]]:
    """Return the findings in the reported order, and warnings about omitted findings that may be due to chance."""
    # Waste is tested first, because only significant waste is subtracted when launching is scored.
    wastes, doubts = _significant(what_if, [p for p in proposals if p.kind == "waste"], (), significance)
    kept = [scored.proposal for scored in wastes]
    work, more_doubts = _significant(what_if, [p for p in proposals if p.kind != "waste"], kept, significance)
    return _with_alternatives(what_if, in_order([*wastes, *work])), [*doubts, *more_doubts]


def savings_ms(what_if: WhatIf, proposals: Sequence[Proposal]) -> list[float]:
    """Return the savings of each proposal, in ms per step.

    A proposal about communication gets no savings if removing only its host calls (`beyond`) saves as much and removing
    launch overhead saves clearly more. Launch overhead is then the cause.
    """
    costs, now = what_if.corrected, what_if.now_ms
    scenarios = [proposal.edit(what_if, costs) for proposal in proposals]
    shared = [costs if proposal.beyond is None else proposal.beyond(what_if, costs) for proposal in proposals]
    both = what_if.savings_ms([*scenarios, *shared])
    savings, shared_savings = list(both[: len(scenarios)]), both[len(scenarios) :]
    launching = _savings_of_launching(what_if, proposals, savings)
    if launching is None:
        return savings
    return [
        0.0
        if proposal.beyond is not None and not notable(saved - part, now) and launching >= CLEARLY_MORE * saved
        else saved
        for proposal, saved, part in zip(proposals, savings, shared_savings, strict=True)
    ]


def _savings_of_launching(what_if: WhatIf, proposals: Sequence[Proposal], savings: list[float]) -> float | None:
    """Lower the savings of launch overhead, in `savings`, to their minimum over the three jobs, and return the minimum.

    Return None if removing launch overhead saves nothing in the recorded job, or if no proposal is about launching.
    """
    launching = [index for index, proposal in enumerate(proposals) if proposal.kind == "launching"]
    if not any(savings[index] for index in launching):
        return None
    others = (without_waste(what_if, proposals, savings), without_others(what_if, proposals, savings))
    # If no waste or communication is removed, the job is the recorded job, whose savings are known.
    bases = [scenario for scenario in others if scenario is not what_if.corrected]
    for index in launching:
        edit = proposals[index].edit
        savings[index] = min([savings[index], *(what_if.saving_ms(edit(what_if, base), base) for base in bases)])
    return savings[launching[-1]]  # only one rule proposes launch overhead


def without_others(what_if: WhatIf, proposals: Sequence[Proposal], savings: Sequence[float]) -> Scenario:
    """Return the scenario without waste and without communication, so that only launching and kernels remain."""
    costs = without_waste(what_if, proposals, savings)
    return _without_kind("communication", costs, what_if, proposals, savings)


def without_waste(what_if: WhatIf, proposals: Sequence[Proposal], savings: Sequence[float]) -> Scenario:
    """Return the scenario without any waste that has notable savings."""
    return _without_kind("waste", what_if.corrected, what_if, proposals, savings)


def _without_kind(
    kind: str, costs: Scenario, what_if: WhatIf, proposals: Sequence[Proposal], savings: Sequence[float]
) -> Scenario:
    for proposal, saved in zip(proposals, savings, strict=True):
        if proposal.kind == kind and notable(saved, what_if.now_ms):
            costs = proposal.edit(what_if, costs)
    return costs


def _significant(
    what_if: WhatIf, proposals: Sequence[Proposal], wastes: Sequence[Proposal], significance: Significance
) -> tuple[list[ScoredFinding], list[Validity]]:
    """Return (significant findings, warnings about the rest); `wastes` are removed before launch overhead is scored."""
    findings: list[ScoredFinding] = []
    doubts: list[Validity] = []
    # The savings of `wastes`, at the end, are only needed to score launch overhead.
    for proposal, saved in zip(proposals, savings_ms(what_if, [*proposals, *wastes]), strict=False):
        if not notable(saved, what_if.now_ms):
            continue
        scored = scored_finding(what_if, proposal, saved)
        before = [waste.edit for waste in wastes] if proposal.kind == "launching" else []
        doubt = significance.doubt(scored.finding, saved, before, proposal.edit)
        if doubt is None:
            findings.append(scored)
        else:
            doubts.append(Validity(code=f"cannot-tell:{scored.finding.code}", message=doubt))
    return findings, doubts


def scored_finding(what_if: WhatIf, proposal: Proposal, saved_ms: float) -> ScoredFinding:
    """Describe a proposal as a finding, with the step time now and after the fix in its evidence."""
    now_ms = what_if.now_ms
    finding = proposal.describe(saved_ms, 100 * saved_ms / now_ms)
    fixed_ms = now_ms - saved_ms
    # A straggler may save more than is simulated, by time that only unprofiled steps show; `step_ms_now` includes it.
    recoverable_ms = finding.recoverable_ms_per_step or saved_ms
    evidence = {**finding.evidence, "step_ms_now": fixed_ms + recoverable_ms, "step_ms_if_fixed": fixed_ms}
    finding = msgspec.structs.replace(finding, evidence=evidence)
    return ScoredFinding(proposal=proposal, finding=finding, savings_ms=saved_ms)


def in_order(findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Sort by savings, but put waste first among equal savings, and large waste before launch overhead.

    Large waste and communication also go before kernels (`_goes_before`).
    """
    ordered = sorted(findings, key=lambda scored: -scored.savings_ms)
    for index in range(1, len(ordered)):
        at = index
        while at and _goes_before(ordered[at], ordered[at - 1]):
            ordered[at - 1], ordered[at] = ordered[at], ordered[at - 1]
            at -= 1
    return ordered


def _goes_before(later: ScoredFinding, sooner: ScoredFinding) -> bool:
    """Return whether `later` belongs before `sooner` despite its smaller savings."""
    worth_it = later.savings_ms >= WORTH_FIRST * sooner.savings_ms
    worth_it &= (later.finding.recoverable_percent or 0.0) >= WARNING_PERCENT
    if sooner.proposal.kind == "kernels" and later.proposal.kind in {"waste", "communication"}:
        return worth_it  # savings of kernels are only estimated
    if later.proposal.kind != "waste" or sooner.proposal.kind == "waste":
        return False
    if later.savings_ms >= (1 - AS_RECORDED) * sooner.savings_ms:
        return True
    if sooner.proposal.kind != "launching" or later.finding.cause == "launch":
        return False  # a straggler that launches slowly counts as launch overhead too
    return worth_it


def _with_alternatives(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Name in the `instead` of each finding the codes of findings that save nothing more once that finding is fixed.

    Launch overhead, findings below `WARNING_PERCENT`, and pairs of findings about kernels are left out.
    """
    candidates = [
        index
        for index, scored in enumerate(findings)
        if scored.proposal.kind != "launching" and (scored.finding.recoverable_percent or 0.0) >= WARNING_PERCENT
    ]
    pairs = [
        (a, b)
        for a in candidates
        for b in candidates
        if a < b and not findings[a].proposal.kind == findings[b].proposal.kind == "kernels"
    ]
    costs = what_if.corrected
    edits = [scored.proposal.edit for scored in findings]
    both = what_if.savings_ms([edits[b](what_if, edits[a](what_if, costs)) for a, b in pairs])
    instead: list[tuple[str, ...]] = [() for _ in findings]
    for (a, b), together in zip(pairs, both, strict=True):
        if together - min(findings[a].savings_ms, findings[b].savings_ms) < AS_RECORDED * what_if.now_ms:
            instead[a] += (findings[b].finding.code,)
            instead[b] += (findings[a].finding.code,)
    replace = msgspec.structs.replace
    return [
        replace(scored, finding=replace(scored.finding, instead=codes)) if codes else scored
        for scored, codes in zip(findings, instead, strict=True)
    ]


def survival(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[float]:
    """Return the share (0 to 1) of variations that each finding survives, in the order of `findings`."""
    if not findings:
        return []
    reported = np.array([scored.savings_ms for scored in findings])
    variations = [*_without_each_step(what_if, findings), *_at_other_costs(what_if, findings)]
    kept = np.array([_stays(findings, reported, savings) for savings in variations]).reshape(-1, len(findings))
    # A single step does not show how steps vary.
    share = kept.mean(axis=0) if len(kept) and what_if.graph.steps > 1 else np.zeros(len(findings))
    if len(findings) > 1 and findings[0].finding.code not in findings[1].finding.instead:
        # If two findings save the same, either may be first. The first does not survive this additional variation. But
        # the order does not matter if the second finding names the first in `instead`.
        tie = findings[1].savings_ms >= (1 - AS_RECORDED) * findings[0].savings_ms
        share[0] *= len(kept) / (len(kept) + 1) if tie else 1.0
    return share.tolist()


def grade(share: float) -> Confidence:
    """Return the confidence for a share (0 to 1) of survived variations."""
    if share >= SURE:
        return "high"
    return "medium" if share >= FAIRLY_SURE else "low"


def _stays(
    findings: Sequence[ScoredFinding], reported: NDArray[np.float64], savings: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return bool[findings]: the findings that survive a variation with these savings (see the module's docstring)."""
    stays = np.abs(savings - reported) <= SAME_AMOUNT * reported
    first, now_first = findings[0], findings[int(np.argmax(savings))]
    # `in_order` may put a finding first although another saves more. Its place then does not depend on the savings.
    was_behind = first.savings_ms < max(scored.savings_ms for scored in findings)
    if now_first is not first and not was_behind and first.finding.code not in now_first.finding.instead:
        stays[0] &= bool(savings[0] >= (1 - AS_RECORDED) * savings.max())
    return stays


def _without_each_step(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[NDArray[np.float64]]:
    """Return float64[findings] for each left-out step: the mean savings over the other steps, in ms."""
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
    # Reported savings may be less than simulated savings, because unprofiled steps may be shorter.
    scale = np.array([scored.savings_ms for scored in findings]) / np.maximum(whole / count, 1e-9)
    return [scale * (whole - by_step[:, left_out]) / (count - 1) for left_out in range(count)]


def _at_other_costs(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[NDArray[np.float64]]:
    """Return float64[findings], the savings in ms, for each end of the interval of the profiler's cost."""
    added_ms = what_if.simulated_ms - what_if.corrected_ms
    if what_if.unprofiled_ms is not None or added_ms < AS_RECORDED * what_if.simulated_ms:
        return []  # the cost is measured, or too low to matter
    proposals = [scored.proposal for scored in findings]
    ends = (1 - BEYOND_CHANCE * PROFILER_SCATTER, 1 + BEYOND_CHANCE * PROFILER_SCATTER)
    return [np.array(savings_ms(what_if.at_cost(what_if.per_event_ns * end), proposals)) for end in ends]


def settled(case: Case, finding: Finding) -> Finding:
    """Set the finding's confidence to high if the unprofiled steps show the same wait for input.

    The wait is the same if the unprofiled wait differs from the savings by at most a quarter of the savings, and if
    half the width of the wait's 95 % interval is at most the same quarter.
    """
    saved = finding.recoverable_ms_per_step
    wait_ms, half_width_ms = _unprofiled_wait(case, finding) or (None, 0.0)
    untrusted = UNTRUSTED_CODES & {validity.code for validity in case.timeline.validity}
    if saved is None or wait_ms is None or untrusted:
        return finding
    if abs(wait_ms - saved) > SAME_AMOUNT * saved or half_width_ms > SAME_AMOUNT * saved:
        return finding
    evidence = {**finding.evidence, "input_wait_ms_without_profiling": wait_ms}
    return msgspec.structs.replace(finding, confidence="high", evidence=evidence)


def _unprofiled_wait(case: Case, finding: Finding) -> tuple[float, float] | None:
    """Return (mean, half-width of its 95 % interval), in ms, of the finding's unprofiled wait; None if unknown."""
    waits = exposed_input_by_rank(case.run)
    if finding.code == "straggler" and finding.cause == "input":
        half_widths = [mean_of(waits[rank], as_measured=True).half_width for rank in finding.ranks if rank in waits]
        return (later_input_ms(case.run, finding.ranks), max(half_widths)) if half_widths else None
    if finding.code != "input-bound" or not waits:
        return None
    mean = mean_of(waits[typical_rank(waits)], as_measured=True)
    return mean.value, mean.half_width
