"""Test that outlier steps are left out and reported."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case, without_outlier_steps
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.timeline import build_timeline
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, silence

STEPS = 10
LATE = Job(ranks=3, step=DDP, extra={1: (fetch(30),)}, steps=STEPS)
PAUSE_MS = 200


def paused_in(*steps: int) -> Case:
    """Return a case in which all ranks pause in `steps`."""
    timeline = build_timeline(replace(LATE, once={step: (silence(PAUSE_MS),) for step in steps}).traces())
    return Case(timeline=timeline, attribution=attribute(timeline))


def usual() -> float:
    straggler = diagnose(paused_in()).findings[0]
    assert straggler.recoverable_ms_per_step is not None
    return straggler.recoverable_ms_per_step


@pytest.mark.parametrize("step", range(1, STEPS))
def test_pause_does_not_change_the_findings(step: int) -> None:
    case = without_outlier_steps(paused_in(step))
    for track in case.attribution.tracks:
        track.check()
    diagnosis = diagnose(case)
    findings, doubts = diagnosis.findings, diagnosis.validity
    assert findings[0].code == "straggler"
    assert findings[0].ranks == (1,)
    assert findings[0].recoverable_ms_per_step == pytest.approx(usual(), rel=0.05)
    if any(track.step_ns.max() > 1e6 * PAUSE_MS for track in paused_in(step).attribution.tracks):
        assert "uneven-steps" in {doubt.code for doubt in doubts}
        assert findings[0].confidence != "high"


def test_similar_steps_are_all_kept() -> None:
    case = paused_in()
    assert without_outlier_steps(case) is case


def test_frequent_outliers_are_kept() -> None:
    case = without_outlier_steps(paused_in(2, 5, 7))
    assert case.steps == paused_in().steps
    assert "all steps, including outliers" in case.outlier_steps


def test_unprofiled_step_decides_which_steps_are_kept() -> None:
    case = paused_in(6)
    kept = without_outlier_steps(case).steps
    assert kept < case.steps
    alike_ms = without_outlier_steps(case).slowest_ms
    assert without_outlier_steps(run_of(case, [alike_ms] * 20)).steps == kept
    assert without_outlier_steps(run_of(case, [case.slowest_ms] * 20)).steps == case.steps
