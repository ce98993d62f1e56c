"""Test stragglers that compute longer because their GPU is throttled, according to the machine's facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, Piece, fetch, kernels
from tests.app.test_analyze_facts import hot, record
from tests.probed_machine import four_h200

if TYPE_CHECKING:
    from gpudiag.model.analysis import Finding


def straggler(extra: tuple[Piece, ...], *, hot_gpu: int, known_run: bool = True) -> Finding:
    case = case_of(Job(ranks=4, step=DDP, extra={1: extra}).traces())
    case = replace(case, facts=hot(four_h200(), hot_gpu), run=record() if known_run else None)
    findings = diagnose(case).findings
    return next(finding for finding in findings if finding.code == "straggler")


def test_throttled_gpu_of_a_late_rank_is_the_cause() -> None:
    finding = straggler((kernels(8, count=4),), hot_gpu=1)
    assert finding.cause == "clock"
    assert finding.evidence["clock"] == {"1": ["throttled"]}
    assert "slower GPU clocks" in finding.title
    assert any("throttled" in line for line in finding.advice)


@pytest.mark.parametrize(
    ("extra", "hot_gpu", "known_run", "cause"),
    [
        ((kernels(8, count=4),), 2, True, "compute"),
        ((kernels(8, count=4),), 1, False, "compute"),
        ((fetch(30),), 1, True, "input"),
    ],
    ids=["another GPU is throttled", "which GPU the rank had is not known", "it is late for another reason"],
)
def test_clock_is_not_the_cause_without_throttling(
    extra: tuple[Piece, ...], hot_gpu: int, known_run: bool, cause: str
) -> None:
    assert straggler(extra, hot_gpu=hot_gpu, known_run=known_run).cause == cause
