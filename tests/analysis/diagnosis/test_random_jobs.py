"""Test random jobs: known causes are found, findings explain large parts of a step, and a loader is not misreported.

`benchmarks/random_jobs.py` runs more random jobs and lists the errors of each job.
"""

from __future__ import annotations

import pytest

from gpudiag.model.analysis import BUCKETS, Analysis, Device, Finding, Steps, Validity
from tests.analysis.diagnosis.random_jobs.law import violations
from tests.analysis.diagnosis.random_jobs.recipe import ALL_KINDS, draw
from tests.analysis.diagnosis.random_jobs.score import Share, judged
from tests.analysis.diagnosis.random_jobs.truth import truth_of

#: Largest share of wrong diagnoses; one is allowed in any case.
MOST_WRONG = 0.03
MOST_LOADERS_AS_LAUNCHING = 0
MOST_UNLAWFUL = 0


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(60), marks=pytest.mark.apart)], ids=len)
def test_random_jobs_are_diagnosed_correctly(seeds: range) -> None:
    """All requirements are in one test, so that each job is judged once."""
    jobs = [judged(seed) for seed in seeds]
    right = Share(sum(job.verdict.right for job in jobs), len(jobs))
    wrong = [(job.recipe.seed, job.verdict.expected, job.verdict.got, job.verdict.why) for job in jobs]
    most_wrong = max(1, MOST_WRONG * len(jobs))
    assert len(jobs) - right.count <= most_wrong, (str(right), [verdict for verdict in wrong if verdict[-1]])
    loaders = [job.recipe.seed for job in jobs if job.verdict.loader_as_launching]
    assert len(loaders) <= MOST_LOADERS_AS_LAUNCHING, loaders
    unlawful = {job.recipe.seed: job.unlawful for job in jobs if job.unlawful}
    assert len(unlawful) <= MOST_UNLAWFUL, unlawful


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_random_job_is_reproducible_and_its_faults_cost_time(kind: str) -> None:
    assert draw(7, kind) == draw(7, kind)
    truth = truth_of(draw(7, kind))
    assert truth == truth_of(draw(7, kind))
    assert all(cause.gain_ms > -0.02 * truth.step_ms for cause in truth.causes)


def test_share_has_a_wilson_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), 857-872, table I: 81 of 263.
    assert Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=1e-4)


def analysis_of(findings: dict[str, float], unexplained: tuple[str, ...] = (), **buckets: float) -> Analysis:
    """Return the analysis of one device with a step of 100 ms and `buckets` in ms; the rest is compute."""
    parts = dict.fromkeys(BUCKETS, 0.0) | buckets
    parts["compute"] = 100.0 - sum(buckets.values())
    return Analysis(
        framework="pytorch",
        world_size=1,
        ranks_present=(0,),
        steps=Steps(analysed=5, mean_ms=100.0, median_ms=100.0, corrected_mean_ms=100.0),
        devices=(Device(rank=0, device="0", step_ms=100.0, buckets_ms=parts, hidden_communication_ms=0.0),),
        findings=tuple(Finding(code=code, severity="info", recoverable_percent=ms) for code, ms in findings.items()),
        validity=tuple(Validity(code="unexplained", message=message) for message in unexplained),
    )


def test_law_requires_an_explanation_from_five_percent_on() -> None:
    assert not violations(analysis_of({"compute-bound": 0}, launch=4.9))
    assert violations(analysis_of({"compute-bound": 0}, launch=5.1)) == [
        "compute-bound, but launch takes 5 % of the step"
    ]
    assert not violations(analysis_of({"launch-bound": 5.1}, launch=5.1))
    assert violations(analysis_of({"launch-bound": 5.1}, launch=5.1, communication_transfer=50.0))
    unexplained = ("communication transfer takes 50.0 ms of a step: something else may take as long",)
    assert not violations(analysis_of({"launch-bound": 5.1}, unexplained, communication_transfer=50.0))
    assert violations(analysis_of({}, unexplained, communication_transfer=50.0, launch=5.1))
