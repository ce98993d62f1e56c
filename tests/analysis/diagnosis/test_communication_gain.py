"""Test the cost of communication if unprofiled steps are faster than any profiler overhead explains."""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, all_reduce, kernels, update

COMPUTE_MS, COMMUNICATION_MS = 20.0, 12.0


@pytest.mark.parametrize("timed_ms", [24.0, 28.0])
def test_communication_on_gpus_costs_the_unprofiled_step_minus_other_work(timed_ms: float) -> None:
    """In the trace communication takes 12 ms after 20 ms of kernels; in unprofiled steps it takes 4 or 8 ms."""
    job = Job(ranks=2, step=(kernels(COMPUTE_MS), all_reduce(COMMUNICATION_MS), update(0.5)))
    case = run_of(case_of(job.traces()), [timed_ms + 0.5 + shift for shift in (-0.01, 0.0, 0.01) * 5])
    (found,) = [finding for finding in diagnose(case).findings if finding.code == "communication-bound"]
    share_ms = COMMUNICATION_MS / (COMPUTE_MS + COMMUNICATION_MS) * timed_ms
    assert share_ms > 1.1 * (timed_ms - COMPUTE_MS)
    assert found.recoverable_ms_per_step == pytest.approx(timed_ms - COMPUTE_MS, abs=0.2)
