"""From traces to a case and its diagnosis, through the real stages."""

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
    """Findings by code; what could not be told and why the data is doubtful, by code."""
    case = case_of(traces)
    diagnosis = diagnose(case)
    validity = {one.code: one.message for one in (*case.timeline.validity, *diagnosis.validity)}
    # Of two of one code (launching: few slow calls, many short ones) the first that is said.
    found: dict[str, Finding] = {}
    for finding in diagnosis.findings:
        found.setdefault(finding.code, finding)
    return found, validity
