"""Score proposals: what the step saves without each cause, in which order to fix them, and which replaces another.

Savings alone say what to believe, not what to do. A host that spends 30 ms in its loader and 15 ms launching, for a
device that needs 31 ms, is 14 ms faster without the loader and 14 ms faster without launching. But nobody can do
without launching, and once the loader is fixed the device hides it. Therefore waste is scored in the recorded job, and
launch overhead in a job without the found waste, both with and without communication.

Two kinds of waste may hide each other: if the loader is late and the host also waits for the device, removing either
lets the device set the pace. Both are findings, each with its own savings, and each names the other in `instead`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, CLEARLY_MORE, WARNING_PERCENT, WORTH_FIRST
from gpudiag.analysis.diagnosis.rules.rule import Proposal, notable
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.scenario import Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding, Validity


class ScoredFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal that saves enough to be a finding.

    Attributes:
        proposal: the cause that is removed.
        finding: its description.
        savings_ms: by how much a step is shorter without the cause; for launching, in a job without waste.
    """

    proposal: Proposal
    finding: Finding
    savings_ms: float


def score(
    what_if: WhatIf, proposals: Sequence[Proposal], significance: Significance
) -> tuple[list[ScoredFinding], list[Validity]]:
    """Return the findings in the reported order, and the doubts about findings that may be chance."""
    # Insignificant waste is not subtracted when launching is scored, so waste goes first.
    wastes, doubts = _significant(what_if, [p for p in proposals if p.kind == "waste"], (), significance)
    kept = [scored.proposal for scored in wastes]
    work, more_doubts = _significant(what_if, [p for p in proposals if p.kind != "waste"], kept, significance)
    return _with_alternatives(what_if, in_order([*wastes, *work])), [*doubts, *more_doubts]


def savings_ms(what_if: WhatIf, proposals: Sequence[Proposal]) -> list[float]:
    """Return what each proposal saves, in ms of a step.

    A proposal saves nothing if all of its savings are those of `beyond` (communication that costs only host calls) and
    removing launch overhead saves clearly more, because then launch overhead is the cause.
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
    """Lower the savings of launching to those without waste; return them, or None if it saves nothing."""
    places = [index for index, proposal in enumerate(proposals) if proposal.kind == "launching"]
    if not any(savings[index] for index in places):
        return None
    others = (without_waste(what_if, proposals, savings), without_others(what_if, proposals, savings))
    worlds = [scenario for scenario in others if scenario is not what_if.corrected]
    for index in places:
        edit = proposals[index].edit
        savings[index] = min([savings[index], *(what_if.saving_ms(edit(what_if, world), world) for world in worlds)])
    return savings[places[-1]]


def without_others(what_if: WhatIf, proposals: Sequence[Proposal], savings: Sequence[float]) -> Scenario:
    """Return the scenario of a host that only launches: without waste and without communication."""
    costs = without_waste(what_if, proposals, savings)
    return _without_kind("communication", costs, what_if, proposals, savings)


def without_waste(what_if: WhatIf, proposals: Sequence[Proposal], savings: Sequence[float]) -> Scenario:
    """Return the costs without any waste that saves something."""
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
    """Return the proposals that save time in addition to these wastes, and doubts about proposals that may be
    chance."""
    findings: list[ScoredFinding] = []
    doubts: list[Validity] = []
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
    """Return the proposal described as a finding, with the step as it is and as it would be in the evidence."""
    now_ms = what_if.now_ms
    finding = proposal.describe(saved_ms, 100 * saved_ms / now_ms)
    fixed_ms = now_ms - saved_ms
    recoverable_ms = finding.recoverable_ms_per_step or saved_ms
    evidence = {**finding.evidence, "step_ms_now": fixed_ms + recoverable_ms, "step_ms_if_fixed": fixed_ms}
    finding = msgspec.structs.replace(finding, evidence=evidence)
    return ScoredFinding(proposal=proposal, finding=finding, savings_ms=saved_ms)


def in_order(findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Sort by savings, with waste before work if they are alike, and launching after waste that is worth fixing."""
    ordered = sorted(findings, key=lambda scored: -scored.savings_ms)
    for index in range(1, len(ordered)):
        at = index
        while at and _goes_before(ordered[at], ordered[at - 1]):
            ordered[at - 1], ordered[at] = ordered[at], ordered[at - 1]
            at -= 1
    return ordered


def _goes_before(later: ScoredFinding, sooner: ScoredFinding) -> bool:
    if later.proposal.kind != "waste" or sooner.proposal.kind == "waste":
        return False
    if later.savings_ms >= (1 - AS_RECORDED) * sooner.savings_ms:
        return True
    if sooner.proposal.kind != "launching" or later.finding.cause == "launch":
        return False  # a straggler that launches slowly counts as launch overhead too
    worth_it = later.savings_ms >= WORTH_FIRST * sooner.savings_ms
    return worth_it and (later.finding.recoverable_percent or 0.0) >= WARNING_PERCENT


def _with_alternatives(what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Return the findings, each with the codes of those findings that need no fix after it is fixed."""
    candidates = [
        index
        for index, scored in enumerate(findings)
        if scored.proposal.kind != "launching" and (scored.finding.recoverable_percent or 0.0) >= WARNING_PERCENT
    ]
    pairs = [(a, b) for a in candidates for b in candidates if a < b]
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
