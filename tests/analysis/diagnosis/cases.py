"""Build a case and its diagnosis from traces, as `gpudiag analyze` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.compute.work import compute_work
from gpudiag.analysis.diagnosis.case import Case, without_outlier_steps
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.timeline import build_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.analysis import Finding
    from gpudiag.model.event import Trace


def case_of(traces: Sequence[Trace]) -> Case:
    timeline = build_timeline(traces)
    work = compute_work(timeline)
    return without_outlier_steps(Case(timeline=timeline, attribution=attribute(timeline), work=work))


def diagnosis_of(traces: Sequence[Trace]) -> tuple[dict[str, Finding], dict[str, str]]:
    """Return the findings by code, and the messages about validity by code."""
    case = case_of(traces)
    diagnosis = diagnose(case)
    validity = {warning.code: warning.message for warning in (*case.timeline.validity, *diagnosis.validity)}
    # If there are two findings of a code (few slow calls, many short calls), only the first is returned.
    findings: dict[str, Finding] = {}
    for finding in diagnosis.findings:
        findings.setdefault(finding.code, finding)
    return findings, validity
