"""Test damaged and unusual recordings: no crash, no implausible figure, and low confidence if data is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudiag.analysis.diagnosis.engine import diagnose
from tests.analysis.diagnosis import broken
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, fetch, item, kernels
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.model.event import Trace

LATE = Job(ranks=3, step=DDP, extra={1: (fetch(30),)}, steps=8)

faults = st.one_of(
    st.tuples(st.floats(0, 1), st.integers(0, 9)).map(lambda a: lambda t: broken.without_correlations(t, *a)),
    st.tuples(st.floats(0, 1), st.integers(0, 9)).map(lambda a: lambda t: broken.mixed_correlations(t, *a)),
    st.tuples(st.floats(0, 1), st.integers(0, 9)).map(lambda a: lambda t: broken.without_collectives(t, *a)),
    st.integers(1, 20).map(lambda factor: lambda t: broken.overlapping(t, factor)),
    st.floats(0, 0.95).map(lambda share: lambda t: broken.since(t, share)),
    st.just(broken.without_marks),
    st.integers(-(10**9), 10**9).map(lambda offset: lambda t: broken.clock_ahead(t, offset)),
    st.integers(1, 10**7).map(lambda spread: lambda t: broken.jittering_clock(t, spread)),
)


@given(
    breaks=st.lists(st.tuples(st.integers(0, 2), faults), min_size=1, max_size=4),
    steps=st.integers(0, 8),
    late=st.booleans(),
)
@examples(60)
def test_damaged_input_causes_no_crash_and_no_implausible_figure(
    breaks: list[tuple[int, Callable[[Trace], Trace]]], steps: int, late: bool
) -> None:
    job = replace(LATE, steps=max(steps, 1), extra=LATE.extra if late else {})
    traces = list(job.traces())
    for rank, fault in breaks:
        traces[rank] = fault(traces[rank])
    case = case_of(traces)
    for track in case.attribution.tracks:
        assert (track.buckets_ns.sum(axis=1) == track.step_ns).all()
    diagnosis = diagnose(case)
    findings, doubts = diagnosis.findings, diagnosis.validity
    for finding in findings:
        assert 0 <= (finding.recoverable_percent or 0.0) <= 100
        assert (finding.recoverable_ms_per_step or 0.0) <= 2 * case.slowest_ms
    msgspec.json.encode((findings, doubts))


def everywhere(fault: Callable[[Trace], Trace], job: Job = LATE) -> list[Trace]:
    return [fault(trace) for trace in job.traces()]


@pytest.mark.parametrize(
    "fault",
    [
        lambda t: broken.without_correlations(t, 0.1),
        lambda t: broken.overlapping(t, 2),
        lambda t: broken.clock_ahead(t, 10**6 * (t.rank or 0)),
        lambda t: broken.without_collectives(t, 0.2, seed=t.rank or 0),
        lambda t: broken.since(t, 0.2) if t.rank == 1 else t,
    ],
    ids=["launches missing", "ops overlap", "clocks apart", "collectives missing", "one capture began late"],
)
def test_late_rank_is_found_in_damaged_input(fault: Callable[[Trace], Trace]) -> None:
    findings, _ = diagnosis_of(everywhere(fault))
    assert findings["straggler"].ranks == (1,)
    assert findings["straggler"].cause == "input"


def test_outlier_steps_prevent_high_confidence() -> None:
    def slower(step: int) -> Trace:
        """Make one step four times as long."""
        (trace,) = Job(ranks=1, step=(kernels(10), item()), steps=8).traces()
        return broken.stretched(trace, step, 30_000_000)

    for step in (1, 4):
        findings, validity = diagnosis_of([slower(step)])
        assert "uneven-steps" in validity
        assert all(finding.confidence != "high" for finding in findings.values())


def test_steps_from_a_pattern_have_lower_confidence() -> None:
    findings, validity = diagnosis_of(everywhere(broken.without_marks))
    assert "no-step-marks" in validity
    assert all(finding.confidence != "high" for finding in findings.values())


def test_unaligned_clocks_lower_confidence_between_ranks() -> None:
    findings, validity = diagnosis_of(
        [broken.jittering_clock(trace, 2_000_000, seed=trace.rank or 0) for trace in LATE.traces()]
    )
    assert "clock-skew" in validity
    assert all(findings[code].confidence != "high" for code in ("straggler", "communication-bound") if code in findings)


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_steps_prevent_high_confidence(steps: int) -> None:
    findings, validity = diagnosis_of(replace(LATE, steps=steps).traces())
    assert "few-steps" in validity
    assert all(finding.confidence != "high" for finding in findings.values())


def test_single_rank_of_many_gets_advice_on_recording() -> None:
    findings, validity = diagnosis_of(replace(LATE, recorded=(0,)).traces())
    assert {"missing-ranks", "cannot-tell:straggler", "cannot-tell:communication-bound"} <= validity.keys()
    (finding,) = findings.values()
    assert (finding.code, finding.cause, finding.confidence) == ("communication-bound", None, "low")
    assert finding.recoverable_ms_per_step is None
    assert finding.title.startswith("communication, or waiting in it")
    assert any("Record all ranks" in str(line) for line in finding.advice)
