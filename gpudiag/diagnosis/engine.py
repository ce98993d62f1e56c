"""Runs every rule on a case, replays what each proposes, and sorts what is found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gpudiag.diagnosis.rules import RULES
from gpudiag.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.diagnosis.rules.rule import CannotTell, Proposal, notable
from gpudiag.model.analysis import Finding, Validity

if TYPE_CHECKING:
    from gpudiag.diagnosis.case import Case
    from gpudiag.diagnosis.replay.what_if import WhatIf

#: A replay that misses the measured step time by more than this share is trusted less.
_POOR_REPLAY = 0.03


def diagnose(case: Case) -> tuple[tuple[Finding, ...], tuple[Validity, ...]]:
    """All findings, largest recoverable time first, and what could not be told and why."""
    what_if = case.what_if
    if what_if is None:
        reason = (
            "nothing that could be replayed was recorded: neither launches of device work nor collectives handed over "
            "in whole steps. Record both CPU and CUDA activities over five or more marked steps."
        )
        return (), (Validity(code="cannot-tell", message=reason),)
    proposals: list[Proposal] = []
    doubts: list[Validity] = []
    for rule in RULES:
        for verdict in rule().examine(case):
            if isinstance(verdict, CannotTell):
                doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=verdict.reason))
            else:
                proposals.append(verdict)
    findings = [*_weigh(case, what_if, proposals)]
    conclusive = not doubts
    findings.extend(ComputeBound().conclude(case, findings, conclusive=conclusive))
    return tuple(findings), tuple(doubts)


def _weigh(case: Case, what_if: WhatIf, proposals: list[Proposal]) -> list[Finding]:
    """Findings by gain, alone; a cause whose gain is gone once the larger ones are fixed is not a cause of its own.

    A host that spends 40 ms in its loader and 15 ms launching, for a device that needs 30 ms, would be 15 ms faster
    with launches for free. But once the loader is fixed the launches hide behind the device: they are no finding.
    """
    base_ms = what_if.corrected_ms
    gains = [(what_if.gain_ms(proposal.edit(what_if.corrected)), proposal) for proposal in proposals]
    gains.sort(key=lambda pair: -pair[0])
    findings: list[Finding] = []
    fixed, fixed_ms = what_if.corrected, base_ms
    for gain, proposal in gains:
        if not notable(gain, base_ms):
            continue
        together = proposal.edit(fixed)
        together_ms = what_if.step_ms(together)
        if findings and not notable(fixed_ms - together_ms, base_ms):
            continue
        finding = proposal.describe(gain, 100 * gain / base_ms)
        evidence = {**finding.evidence, "step_ms_now": base_ms, "step_ms_without": base_ms - gain}
        if findings:
            evidence["gain_after_larger_fixes_ms"] = fixed_ms - together_ms
        confidence = finding.confidence
        if abs(what_if.replayed_ms - case.step_ms) > _POOR_REPLAY * case.step_ms or case.steps < 2:
            confidence = "low" if confidence == "medium" else "medium" if confidence == "high" else "low"
        findings.append(msgspec.structs.replace(finding, evidence=evidence, confidence=confidence))
        fixed, fixed_ms = together, together_ms
    return findings
