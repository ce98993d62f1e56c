"""Test that unprofiled steps with an equal wait confirm a finding about a wait, even if few steps were recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.diagnosis.scoring import settled
from gpudiag.model.analysis import Finding, Validity
from tests.analysis.diagnosis.rule_examples.jobs import Job, fetch, kernels
from tests.analysis.diagnosis.test_unprofiled_steps import timed

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.case import Case

#: Recorded and unprofiled steps take 30 ms, of which the host waits 10 ms for input.
CASE = timed(Job(ranks=1, step=(fetch(10), kernels(20))), 1 / 3)


def confidence(case: Case, saved_ms: float, *, code: str = "input-bound", cause: str = "loader") -> str:
    finding = Finding(
        code=code, severity="critical", ranks=(0,), cause=cause, recoverable_ms_per_step=saved_ms, confidence="low"
    )
    return settled(case, finding).confidence


@pytest.mark.parametrize(
    ("share", "expected"), [(0.76, "low"), (0.82, "high"), (1.0, "high"), (1.3, "high"), (1.4, "low")]
)
def test_equal_unprofiled_wait_gives_high_confidence(share: float, expected: str) -> None:
    wait_ms = CASE.slowest_ms / 3
    assert confidence(CASE, share * wait_ms) == expected


def test_unprofiled_input_wait_confirms_only_input_findings() -> None:
    wait_ms = CASE.slowest_ms / 3
    assert confidence(CASE, wait_ms, code="host-stall") == "low"
    assert confidence(CASE, wait_ms, code="straggler", cause="compute") == "low"
    assert confidence(replace(CASE, run=None), wait_ms) == "low"


def test_untrusted_recording_confirms_nothing() -> None:
    doubted = msgspec.structs.replace(CASE.timeline, validity=(Validity(code="mixed-runs", message=""),))
    assert confidence(replace(CASE, timeline=doubted), CASE.slowest_ms / 3) == "low"


def test_late_loader_of_one_rank_is_confirmed_by_its_longer_wait() -> None:
    case = timed(Job(ranks=2, step=(kernels(20),), extra={1: (fetch(10),)}), [0.0, 1 / 3])
    late = Finding(
        code="straggler",
        severity="critical",
        ranks=(1,),
        cause="input",
        recoverable_ms_per_step=case.slowest_ms / 3,
        confidence="low",
    )
    assert settled(case, late).confidence == "high"
    assert settled(case, msgspec.structs.replace(late, ranks=(0,))).confidence == "low"
