"""What was measured without the profiler: means, what a recording cost, and input that only the timed steps show."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.examples import DDP, Job, fetch, kernels
from gpudiag.analysis.diagnosis.timed_steps import exposed_input_ms, recording_cost, recording_doubts, timed_ranks
from gpudiag.model.run import RankRecord, TimedSteps
from gpudiag.training.session.clock import summarize
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.records import run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.case import Case
    from gpudiag.model.analysis import Finding

STEPS = 40


def timed(job: Job, share: float | Sequence[float], *, device: str = "cuda", lead: float = 0.0) -> Case:
    """The job with timed steps that are longer by this share of the recorded one, by rank, spent in fetching.

    The host is ahead of its device by `lead` of a recorded step, and fetches that much longer.
    """
    case = case_of(job.traces())
    shares = [share] * job.ranks if isinstance(share, float) else list(share)
    base_ms = case.slowest_ms
    # A loader is not the same in each step.
    scatter = list(islice(cycle((0.8, 1.2, 0.9, 1.1)), STEPS))
    case = run_of(case, [base_ms * (1 + max(shares) * one) for one in scatter])
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank,
            device=device if device == "cpu" else f"{device}:{rank.rank}",
            timed=TimedSteps(
                input_ms=tuple(base_ms * (own * one + lead) for one in scatter),
                host_ms=(base_ms,) * STEPS,
                lead_ms=None if device == "cpu" else (base_ms * lead,) * STEPS,
            ),
        )
        for rank, own in zip(case.run.ranks, shares, strict=True)
    ]
    return replace(case, run=msgspec.structs.replace(case.run, ranks=tuple(ranks)))


def found(case: Case) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose(case)[0]}


#: Nothing in these recordings waits for input.
QUIET = Job(ranks=2, step=DDP)


@pytest.mark.parametrize(("device", "lead"), [("cuda", 0.0), ("cuda", 0.3), ("cpu", 0.0)])
def test_a_loader_too_slow_by_a_tenth_that_the_recording_hides_is_found(device: str, lead: float) -> None:
    case = timed(QUIET, 0.1, device=device, lead=lead)
    assert "input-bound" not in found(replace(case, run=None))
    finding = found(case)["input-bound"]
    assert finding.recoverable_ms_per_step == pytest.approx(0.1 * case.slowest_ms, rel=0.01)
    assert finding.recoverable_percent == pytest.approx(100 * 0.1 / 1.1, rel=0.05)
    assert (finding.severity, finding.confidence, finding.ranks) == ("warning", "high", (0, 1))
    assert finding.evidence["timed_steps"] in {STEPS, STEPS - 1}
    assert finding.advice
    assert "compute-bound" not in found(case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(timed(QUIET, 0.02), id="2 % of the step"),
        pytest.param(timed(QUIET, (0.3, 0.0)), id="one rank alone is a straggler"),
        pytest.param(timed(QUIET, 0.0, lead=0.5), id="all of it hidden by the lead"),
        pytest.param(timed(QUIET, 0.0, device="cpu"), id="no time in fetching"),
    ],
)
def test_what_costs_the_job_nothing_is_no_finding(case: Case) -> None:
    assert "input-bound" not in found(case)


def test_where_it_is_not_known_whether_the_device_waits_nothing_is_said() -> None:
    case = timed(QUIET, 0.3)
    assert case.run is not None
    for unknown in ({"lead_ms": None}, {"input_ms": None}):
        ranks = tuple(
            msgspec.structs.replace(rank, timed=msgspec.structs.replace(rank.timed, **unknown))
            for rank in case.run.ranks
            if rank.timed is not None
        )
        assert "input-bound" not in found(replace(case, run=msgspec.structs.replace(case.run, ranks=ranks)))


def test_what_the_recording_shows_too_is_found_from_the_recording() -> None:
    finding = found(timed(Job(ranks=1, step=(fetch(30), kernels(20))), 0.1))["input-bound"]
    assert "timed_steps" not in finding.evidence


def test_the_gain_is_what_the_device_did_not_have_to_do_meanwhile() -> None:
    rank = RankRecord(rank=0, local_rank=0, host="", pid=1, device="cuda:0", device_name="")
    steps = TimedSteps(input_ms=(9.0, 8.0, 2.0, 7.0), host_ms=(1.0,) * 4, lead_ms=(5.0, 5.0, 0.0, 9.0))
    # Before the first step nothing is known; 8 after a lead of 5, 2 after 5, 7 after none.
    assert exposed_input_ms(msgspec.structs.replace(rank, timed=steps)) == (3.0, 0.0, 7.0)
    on_cpu = msgspec.structs.replace(steps, lead_ms=None)
    assert exposed_input_ms(msgspec.structs.replace(rank, timed=on_cpu, device="cpu")) == (9.0, 8.0, 2.0, 7.0)
    assert exposed_input_ms(rank) == ()


def test_means_and_costs_of_a_run() -> None:
    case = timed(QUIET, 0.1, lead=0.2)
    assert case.run is not None
    ranks = [
        msgspec.structs.replace(
            rank,
            light=summarize([99.0, 12.0, 14.0, 99.0]),
            profiled=summarize([99.0, 20.0 + rank.rank, 99.0]),
            notes={"no-light-recording": "because"} if rank.rank else {},
        )
        for rank in case.run.ranks
    ]
    run = msgspec.structs.replace(case.run, ranks=tuple(ranks))
    cost = recording_cost(run)
    assert cost is not None
    # Without the first and the last step, as the analysis leaves them out; of the slowest rank.
    assert (cost.light_ms, cost.full_ms) == (13.0, 21.0)
    assert cost.unprofiled_ms == case.unprofiled_ms
    first, second = timed_ranks(run) or ()
    assert (first.rank, second.rank, first.steps) == (0, 1, STEPS)
    assert first.input_ms == pytest.approx(0.3 * case.slowest_ms)
    assert first.lead_ms == pytest.approx(0.2 * case.slowest_ms)
    assert [one.message for one in recording_doubts(run)] == ["because"]


def test_a_run_from_before_any_of_this_says_nothing() -> None:
    case = run_of(case_of(QUIET.traces()), [10.0, 11.0, 10.0])
    assert timed_ranks(case.run) is None
    assert recording_cost(case.run) is None
    assert recording_doubts(case.run) == ()
    assert (timed_ranks(None), recording_cost(None), recording_doubts(None)) == (None, None, ())
