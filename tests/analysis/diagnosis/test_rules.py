"""Test each rule on its examples, simulated as traces and analysed by all stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpudiag.analysis.diagnosis.documented import DOCUMENTED_RULES
from gpudiag.analysis.diagnosis.kernels.slow_compute import BY_A_COMPILER
from gpudiag.model.analysis import FINDING_CODES
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.analysis.diagnosis.rule_examples import every_example
from tests.analysis.diagnosis.rule_examples.jobs import (
    DDP,
    Job,
    Piece,
    all_reduce,
    fetch,
    item,
    kernels,
    python,
    silence,
    update,
)

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.rules.rule import Rule


def played(*kinds: str) -> list[Any]:
    """Return (code, job) of the examples of `kinds` of every rule."""
    return [
        pytest.param(rule.code, job, id=f"{rule.code}: {what}")
        for rule in DOCUMENTED_RULES
        for what, job in every_example(rule.code, *kinds)
    ]


@pytest.mark.parametrize(("code", "job"), played("FIRES"))
def test_rule_fires_on_its_example(code: str, job: Job) -> None:
    findings, _ = diagnosis_of(job.traces())
    assert code in findings
    finding = findings[code]
    assert finding.advice
    assert finding.title
    assert finding.recoverable_ms_per_step is not None
    assert finding.code in FINDING_CODES
    msgspec.json.encode(finding)
    if finding.cause in BY_A_COMPILER:
        assert finding.severity == "info"
        assert set(findings) == {code, "compute-bound"}
    elif code != "compute-bound":
        assert finding.severity in {"warning", "critical"}
        assert next(iter(findings)) == code, "the first finding of an example is its own"


@pytest.mark.parametrize(("code", "job"), played("SILENT"))
def test_rule_is_silent_on_its_example(code: str, job: Job) -> None:
    findings, validity = diagnosis_of(job.traces())
    assert code not in findings
    assert f"cannot-tell:{code}" not in validity


@pytest.mark.parametrize(("code", "job"), played("ABSTAINS"))
def test_abstaining_rule_says_what_to_record(code: str, job: Job) -> None:
    findings, validity = diagnosis_of(job.traces())
    if code in findings:  # the finding reports a share of the step, but no savings
        assert findings[code].recoverable_ms_per_step is None
        assert "or waiting in it" in findings[code].title
    assert "give the traces of all ranks" in validity[f"cannot-tell:{code}"]
    assert "compute-bound" not in findings


@pytest.mark.parametrize("rule", DOCUMENTED_RULES, ids=lambda rule: rule.code)
def test_rule_has_a_description_and_both_kinds_of_examples(rule: type[Rule]) -> None:
    assert len((rule.__doc__ or "").split()) >= 20, "the docstring is the page that users read"
    assert every_example(rule.code, "FIRES")
    assert every_example(rule.code, "SILENT")


@pytest.mark.parametrize(("_code", "job"), played("FIRES", "SILENT"))
def test_unchanged_simulation_reproduces_an_example(_code: str, job: Job) -> None:
    case = case_of(job.traces())
    assert case.what_if is not None
    assert case.what_if.simulated_ms == pytest.approx(case.slowest_ms, rel=0.01)


@pytest.mark.parametrize(
    ("extra", "ranks", "cause"),
    [
        ({2: (fetch(30),)}, (2,), "input"),
        ({0: (fetch(30),), 3: (fetch(30),)}, (0, 3), "input"),
        ({1: (kernels(8, count=4),)}, (1,), "compute"),
        ({3: (python(30),)}, (3,), "operators"),
        ({3: (python(0.3),) * 120}, (3,), "operators"),
        ({3: (python(0.09),) * 400}, (3,), "launch"),
    ],
)
def test_straggler_savings_equal_the_difference_without_it(
    extra: dict[int, tuple[Piece, ...]], ranks: tuple[int, ...], cause: str
) -> None:
    job = Job(ranks=4, step=DDP, extra=extra)
    finding = diagnosis_of(job.traces())[0]["straggler"]
    assert finding.ranks == ranks
    assert finding.cause == cause
    truth = case_of(job.traces()).step_ms - case_of(Job(ranks=4, step=DDP).traces()).step_ms
    assert finding.recoverable_ms_per_step == pytest.approx(truth, rel=0.05)
    assert finding.confidence == "high"


def test_host_that_is_slow_in_everything_is_reported_as_launching_slowly() -> None:
    """Of the additional 20 ms, launches take 9 ms, operators 6 ms and pauses 5 ms, so no component takes most of the
    time."""
    usual = (kernels(4, count=100, launch_us=60), python(2), silence(1), kernels(4, count=100, launch_us=60))
    slow = (kernels(4, count=100, launch_us=105), python(8), silence(6), kernels(4, count=100, launch_us=105))
    end = (all_reduce(2), update(1))
    findings = diagnosis_of(Job(ranks=2, step=(*usual, *end), own={1: (*slow, *end)}, steps=8).traces())[0]
    late = findings["straggler"]
    assert (late.ranks, late.cause) == ((1,), "launch")
    by_part = sorted(late.evidence["savings_ms_by_part"].values())
    assert by_part[-1] < 0.5 * (late.recoverable_ms_per_step or 0.0)


def test_rank_that_alone_waits_for_its_device_is_late() -> None:
    alone = (item(), *(python(0.3),) * 40)
    findings = diagnosis_of(Job(ranks=2, step=DDP, extra={0: alone}).traces())[0]
    assert "host-sync" not in findings
    assert findings["straggler"].ranks == (0,)


def test_rotating_late_rank_is_jitter_with_its_distribution() -> None:
    job = Job(ranks=4, step=DDP, rotating=(kernels(8, count=4),), steps=10)
    finding = diagnosis_of(job.traces())[0]["straggler"]
    assert finding.title.startswith("ranks take turns being slow")
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.evidence["times_last_by_rank"].keys() == {0, 1, 2, 3}
    assert finding.confidence != "high"


def test_rank_that_is_late_slightly_more_often_is_not_named() -> None:
    # In the analysed steps 1 to 5, rank 1 is late twice, and each other rank once.
    job = Job(ranks=4, step=DDP, rotating=(kernels(8, count=4),), steps=7)
    finding = diagnosis_of(job.traces())[0]["straggler"]
    assert finding.title.startswith("ranks take turns")


def test_dropped_events_and_few_steps_lower_confidence() -> None:
    whole = diagnosis_of(Job(ranks=4, step=DDP, extra={2: (fetch(30),)}).traces())
    dropped = diagnosis_of(Job(ranks=4, step=DDP, extra={2: (fetch(30),)}, dropped_events=100).traces())
    few = diagnosis_of(Job(ranks=4, step=DDP, extra={2: (fetch(30),)}, steps=4).traces())
    assert whole[0]["straggler"].confidence == "high"
    assert "dropped-events" in dropped[1]
    assert "few-steps" in few[1]
    assert dropped[0]["straggler"].confidence != "high"
    assert few[0]["straggler"].confidence != "high"


def test_single_step_cannot_be_simulated() -> None:
    findings, validity = diagnosis_of(Job(ranks=4, step=DDP, steps=1).traces())
    (finding,) = findings.values()
    assert (finding.code, finding.confidence, finding.recoverable_ms_per_step) == ("compute-bound", "medium", 0)
    assert "cannot-tell" not in validity, "a compute-bound step needs no simulation"
    findings, validity = diagnosis_of(Job(ranks=1, step=(kernels(5), python(30), kernels(5)), steps=1).traces())
    assert next(iter(findings.values())).recoverable_ms_per_step is None
    assert "five or more marked steps" in validity["cannot-tell"]
