"""Runs every rule on a case and sorts what they find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.diagnosis.rules import RULES
from gpudiag.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.diagnosis.rules.rule import CannotTell
from gpudiag.model.analysis import Finding, Validity

if TYPE_CHECKING:
    from gpudiag.diagnosis.case import Case


def diagnose(case: Case) -> tuple[tuple[Finding, ...], tuple[Validity, ...]]:
    """All findings, largest recoverable time first, and what could not be told and why."""
    findings: list[Finding] = []
    doubts: list[Validity] = []
    for rule in RULES:
        for verdict in rule().examine(case):
            if isinstance(verdict, CannotTell):
                doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=verdict.reason))
            else:
                findings.append(verdict)
    findings.extend(ComputeBound().conclude(case, findings))
    findings.sort(key=lambda finding: -(finding.recoverable_ms_per_step or 0.0))
    return tuple(findings), tuple(doubts)
