"""Test that differences of parts sum to that of the whole at every level, and change sign if runs are exchanged."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given

from gpudiag.analysis.comparison import compare
from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import BUCKETS, Steps
from gpudiag.model.diff import DIFF_SCHEMA, OTHER_KERNELS, Diff
from gpudiag.model.run_directory import encode_json
from tests import builders
from tests.analysis.comparison.runs import analyses, healthy, hostile, late_rank, run, source
from tests.examples import examples
from tests.report.parallel_job import pipeline_job

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

OPPOSITE = {"slower": "faster", "faster": "slower"}
TURNED = {"appeared": "disappeared", "disappeared": "appeared", "remained": "remained"}


@examples(60)
@given(analyses(), analyses())
def test_changes_sum_at_every_level(before: Analysis, after: Analysis) -> None:
    diff = compare(before, after)
    step = diff.step("profiled")
    # Sums of times up to 1e4 ms have a rounding error of about 1e-11 ms, and a nanosecond is 1e-6 ms.
    assert fsum(bucket.difference_ms for bucket in diff.buckets) == pytest.approx(step.difference_ms, abs=1e-8)
    assert diff.unattributed_ms == pytest.approx(0, abs=1e-8)
    assert fsum(bucket.before_ms for bucket in diff.buckets) == pytest.approx(step.before_ms)
    assert fsum(bucket.after_ms for bucket in diff.buckets) == pytest.approx(step.after_ms)
    for bucket in diff.buckets:
        parts = fsum([bucket.rest_ms, *(part.difference_ms for part in bucket.parts)])
        assert parts == pytest.approx(bucket.difference_ms, abs=1e-8)
    for rank in diff.ranks:
        buckets = fsum([rank.unattributed_ms, *rank.buckets_ms.values()])
        assert buckets == pytest.approx(rank.difference_ms, abs=1e-8)
    if len(before.devices) == len(after.devices) == len(diff.ranks):
        for bucket in diff.buckets:
            mean = fsum(rank.buckets_ms[bucket.bucket] for rank in diff.ranks) / len(diff.ranks)
            assert mean == pytest.approx(bucket.difference_ms, abs=1e-8)


@examples(60)
@given(analyses(), analyses())
def test_swapping_runs_inverts_every_sign(before: Analysis, after: Analysis) -> None:
    there, back = compare(before, after), compare(after, before)
    assert back.outcome == OPPOSITE.get(there.outcome, there.outcome)
    assert back.unattributed_ms == -there.unattributed_ms
    for one, other in zip(there.steps, back.steps, strict=True):
        assert (other.before_ms, other.after_ms, other.difference_ms) == (
            one.after_ms,
            one.before_ms,
            -one.difference_ms,
        )
        if one.ci95_ms is not None:
            assert other.ci95_ms == (-one.ci95_ms[1], -one.ci95_ms[0])
    for bucket, turned in zip(there.buckets, back.buckets, strict=True):
        assert (turned.difference_ms, turned.rest_ms) == (-bucket.difference_ms, -bucket.rest_ms)
        assert [(p.name, p.size_bytes, -p.difference_ms) for p in bucket.parts] == [
            (p.name, p.size_bytes, p.difference_ms) for p in turned.parts
        ]
    for rank, turned_rank in zip(there.ranks, back.ranks, strict=True):
        assert turned_rank.buckets_ms == {bucket: -value for bucket, value in rank.buckets_ms.items()}
    assert {(w.rank, w.on_rank, -w.difference_ms) for w in there.waits} == {
        (w.rank, w.on_rank, w.difference_ms) for w in back.waits
    }
    assert sorted(TURNED[finding.status] for finding in there.findings) == sorted(
        finding.status for finding in back.findings
    )
    if there.step("profiled").difference_ms != 0:
        assert (there.cause is None) == (back.cause is None)
        if there.cause and back.cause:
            assert (there.cause.bucket, there.cause.ranks) == (back.cause.bucket, back.cause.ranks)
            assert there.cause.difference_ms == -back.cause.difference_ms


@examples(20)
@given(analyses())
def test_run_does_not_differ_from_itself(analysis: Analysis) -> None:
    diff = compare(analysis, analysis)
    assert diff.cause is None
    assert diff.run_differences == ()
    assert {finding.status for finding in diff.findings} <= {"remained"}
    assert all(bucket.difference_ms == 0 for bucket in diff.buckets)
    assert diff.outcome in {"no-difference", "cannot-tell"}


def test_diff_survives_json() -> None:
    for before, after in ((healthy(), late_rank()), (healthy(), hostile())):
        diff = compare(before, after)
        assert diff.schema == DIFF_SCHEMA == "gpudiag/diff/1"
        assert msgspec.json.decode(encode_json(diff), type=Diff) == diff


def test_straggler_explains_waiting_of_other_ranks() -> None:
    diff = compare(healthy(), late_rank())
    assert (diff.outcome, diff.judged) == ("slower", "profiled")
    assert diff.cause is not None
    assert (diff.cause.bucket, diff.cause.ranks) == ("idle", (2,))
    assert diff.cause.difference_ms == pytest.approx(26.0)
    assert diff.cause.waiting_ms == pytest.approx(25.8)
    assert diff.cause.part is not None
    assert diff.cause.part.name == "unmarked-input"


def test_straggler_of_two_ranks_explains_waiting() -> None:
    before = run({"compute": 20.0}, {"compute": 20.0})
    after = late_rank()
    after = run(
        {"compute": 20.0, "communication_wait": 10.0},
        {"compute": 20.0, "launch": 10.0},
        waits=(msgspec.structs.replace(after.waits[0], rank=0, on_rank=1, ms_per_step=10.0),),
    )
    cause = compare(before, after).cause
    assert cause is not None
    assert (cause.bucket, cause.ranks, cause.waiting_ms) == ("launch", (1,), 10.0)


def test_ranks_that_wait_in_turn_are_no_stragglers() -> None:
    parts = {"compute": 20.0, "communication_wait": 6.0}
    template = late_rank().waits[0]
    waits = tuple(
        msgspec.structs.replace(template, rank=rank, on_rank=other, ms_per_step=2.0)
        for rank in range(4)
        for other in range(4)
        if rank != other
    )
    before = run(*({"compute": 20.0} for _ in range(4)))
    cause = compare(before, run(*(parts for _ in range(4)), waits=waits)).cause
    assert cause is not None
    assert (cause.bucket, cause.ranks) == ("communication_wait", ())


def test_change_on_one_rank_without_waiting_names_that_rank() -> None:
    before = run(*({"compute": 20.0} for _ in range(4)))
    after = run(*({"compute": 20.0 + (8.0 if rank == 3 else 0.0)} for rank in range(4)))
    cause = compare(before, after).cause
    assert cause is not None
    assert (cause.bucket, cause.ranks, cause.difference_ms) == ("compute", (3,), 8.0)


def test_unprofiled_steps_are_judged_if_both_runs_have_them() -> None:
    def timed(mean: float) -> Analysis:
        """Return an analysis with four unprofiled steps around `mean` ms."""
        times = tuple(mean + off for off in (-0.1, 0.1, 0.0, 0.05))
        steps = Steps(
            analysed=5,
            mean_ms=30,
            median_ms=30,
            unprofiled_mean_ms=mean,
            unprofiled_times_ms=times,
            corrected_mean_ms=mean,
        )
        return run({"compute": 30.0}, steps=steps)

    diff = compare(timed(20.0), timed(22.0))
    assert [step.kind for step in diff.steps] == ["profiled", "corrected", "unprofiled"]
    assert (diff.outcome, diff.judged) == ("slower", "unprofiled")
    assert diff.step("unprofiled").percent == pytest.approx(10)
    assert compare(timed(20.0), run({"compute": 30.0})).judged == "profiled"


def test_two_steps_give_no_interval() -> None:
    diff = compare(run({"compute": 10.0}, jitter_ms=(0.0, 0.1)), run({"compute": 20.0}))
    assert diff.outcome == "cannot-tell"
    assert "2 and 5 steps" in diff.step("profiled").reason


def test_analysis_without_step_times_gives_a_reason() -> None:
    old = run({"compute": 10.0}, jitter_ms=())
    diff = compare(old, run({"compute": 20.0}))
    assert diff.outcome == "cannot-tell"
    assert diff.step("profiled").reason == "the single step times of the first run were not kept"
    assert diff.parts_reason.startswith("neither run's analysis says")
    assert all(not bucket.parts and bucket.rest_ms == bucket.difference_ms for bucket in diff.buckets)


@pytest.mark.parametrize(
    ("change", "what", "same_work"),
    [
        ({"batch_size_per_device": 128}, "batch size per device", False),
        ({"workload": "vgg16"}, "workload", False),
        ({"strategy": "gloo"}, "strategy", True),
        ({"software": {"torch": "2.13.0"}}, "version of torch", True),
        ({"workload": None}, None, True),
    ],
)
def test_run_differences_are_reported(change: dict[str, object], what: str | None, same_work: bool) -> None:
    before = msgspec.structs.replace(healthy(), source=source())
    after = msgspec.structs.replace(healthy(), source=source(**change))
    diff = compare(before, after)
    assert [difference.what for difference in diff.run_differences] == ([what] if what else [])
    assert diff.same_work is same_work


def test_ranks_of_both_runs_are_compared() -> None:
    parts = {"compute": 20.0}
    diff = compare(run(parts, parts), run(parts, parts, {"compute": 26.0}))
    assert [difference.what for difference in diff.run_differences] == ["number of ranks"]
    assert not diff.same_work
    assert [rank.rank for rank in diff.ranks] == [0, 1]
    assert fsum(bucket.difference_ms for bucket in diff.buckets) == pytest.approx(2.0)
    assert diff.cause is not None
    assert diff.cause.ranks == ()


def test_different_grids_are_reported() -> None:
    before, after = pipeline_job(stages=2), pipeline_job(stages=4)
    (ranks, grid) = compare(before, after).run_differences
    assert (ranks.what, grid.what, grid.same_work) == ("number of ranks", "parallelism", True)
    assert (grid.before, grid.after) == ("pipeline 2, data 2", "pipeline 4, data 2")
    assert "parallelism" not in [unlike.what for unlike in compare(before, builders.late_loader()).run_differences]


def test_different_kernels_are_reported() -> None:
    before, unnamed = healthy(), source(workload=None)
    renamed = [msgspec.structs.replace(part, name=f"other {part.name}") for part in before.portions]
    after = msgspec.structs.replace(before, portions=tuple(renamed), source=unnamed)
    (unlike,) = compare(before, after).run_differences
    assert (unlike.what, unlike.before, unlike.after) == (OTHER_KERNELS, "0% of A's", "0% of B's")
    assert compare(before, msgspec.structs.replace(before, source=unnamed)).run_differences == ()


def test_missing_rank_is_reported_and_counts_as_the_same_work() -> None:
    parts = {"compute": 20.0}
    diff = compare(run(parts, parts), run(parts, world_size=2))
    assert [(difference.what, difference.same_work) for difference in diff.run_differences] == [
        ("ranks with steps", True)
    ]


def test_device_without_steps_is_ignored() -> None:
    whole = run({"compute": 20.0}, {"compute": 20.0})
    diff = compare(whole, run({"compute": 20.0}, {}))
    assert diff.step("profiled").difference_ms == 0
    assert [rank.rank for rank in diff.ranks] == [0]


def test_residual_is_unattributed() -> None:
    diff = compare(healthy(), hostile())
    sums = fsum([diff.unattributed_ms, *(bucket.difference_ms for bucket in diff.buckets)])
    assert sums == pytest.approx(diff.step("profiled").difference_ms)
    assert diff.unattributed_ms == pytest.approx(3.0)


@pytest.mark.parametrize("wrong", ["no device", "no step", "absurd", "nan", "portions"])
def test_invalid_analysis_is_rejected(wrong: str) -> None:
    analysis = {
        "no device": run(),
        "no step": run({}),
        "absurd": run({"compute": 1e300}),
        "nan": run({"compute": 1.0}, jitter_ms=(float("nan"),)),
        "portions": msgspec.structs.replace(run({"compute": 1.0}), portions=healthy().portions),
    }[wrong]
    for pair in ((analysis, healthy()), (healthy(), analysis)):
        with pytest.raises(UnreadableInputError):
            compare(*pair)


def test_findings_are_paired_by_cause_and_ranks_first() -> None:
    finding = late_rank().findings[0]
    on_0, on_1 = (msgspec.structs.replace(finding, ranks=(rank,)) for rank in (0, 1))
    before = msgspec.structs.replace(healthy(), findings=(on_0, on_1))
    after = msgspec.structs.replace(healthy(), findings=(on_1, finding))
    changes = compare(before, after).findings
    assert [
        (change.status, change.before and change.before.ranks, change.after and change.after.ranks)
        for change in changes
    ] == [
        ("remained", (1,), (1,)),
        ("remained", (0,), (2,)),
    ]


def test_all_buckets_are_present_in_order() -> None:
    assert tuple(bucket.bucket for bucket in compare(healthy(), late_rank()).buckets) == BUCKETS
