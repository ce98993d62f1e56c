"""Test which steps are left out, with values just below and above each limit, on devices that compute all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case, without_outlier_steps
from gpudiag.analysis.diagnosis.explained import likely_causes
from gpudiag.analysis.timeline import build_timeline
from tests.analysis.diagnosis.records import run_of
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence


def case_of(*ranks: Sequence[float], first: int = 0, cpu: bool = False) -> Case:
    """Make ranks, given as the ms of their analysed steps, with a further step before and after the analysed steps."""
    traces = []
    for rank, steps in enumerate(ranks):
        trace, at = TraceBuilder(rank, world_size=len(ranks)), 0
        for number, ms in enumerate([10, *steps, 10]):
            trace.step(at, number=first + number)
            length = round(1000 * ms)
            _ = trace.operator(0, length, "aten::mm") if cpu else trace.compute(0, length)
            at += length
        traces.append(trace.build())
    timeline = build_timeline(traces)
    return Case(timeline=timeline, attribution=attribute(timeline))


def kept(case: Case) -> list[int]:
    """Return the numbers of the steps that are kept, which are equal on all tracks."""
    kept_case = without_outlier_steps(case)
    steps = {tuple(track.window_steps.tolist()) for track in kept_case.tracks}
    assert len(steps) == 1
    for track in kept_case.attribution.tracks:
        track.check()
    return list(*steps)


EIGHT = [10.0] * 8


def unlike(**at: float) -> list[float]:
    """Return the ms of eight steps, 10 each unless `at` has another value; `s1` is the first step."""
    return [at.get(f"s{number}", 10.0) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        (EIGHT, range(1, 9)),
        (unlike(s1=15), range(1, 9)),
        # The step after the pause is left out too, because the pause may delay its start. The step before the pause is
        # kept.
        (unlike(s1=15.1), range(3, 9)),
        (unlike(s8=15.1), range(1, 8)),
        (unlike(s3=30), range(5, 9)),
        (unlike(s5=30), range(1, 5)),
        (unlike(s4=30, s8=16), range(1, 4)),  # the first of two equally long runs of steps
        (unlike(s3=30, s8=16), range(5, 8)),
        (unlike(s2=30, s7=16), range(4, 7)),
        (unlike(s3=30, s6=16), range(1, 9)),  # two steps are too few to compare
        (unlike(s1=30, s4=30, s8=30), range(1, 9)),  # steps are no outliers if they are more than a quarter
    ],
)
def test_longest_run_of_similar_steps_is_kept(steps: list[float], left: range) -> None:
    case = case_of(steps)
    assert kept(case) == list(left)
    assert kept(case_of(EIGHT, steps)) == list(left)
    assert [step - 5 for step in kept(case_of(steps, first=5))] == list(left)
    if steps is EIGHT or max(steps) == 15:
        assert without_outlier_steps(case) is case


def test_usual_step_is_the_median_of_all_other_steps() -> None:
    # In steps of 10, 10, 20 and 16 ms, the third step is compared with 10 ms, the median of all other steps. In steps
    # of 10, 20 and 23 ms, the third step is compared with 15 ms.
    assert without_outlier_steps(case_of([10, 10, 20, 16])).outlier_steps.startswith("step 3 (and 1 more like it) took")
    assert without_outlier_steps(case_of([10, 20, 22])).outlier_steps == ""
    assert (
        "step 3 took rank 0 23.0 ms, the others 15.0 ms" in without_outlier_steps(case_of([10, 20, 23])).outlier_steps
    )
    assert "step 2 took rank 0 16.0 ms, the others 10.0 ms" in without_outlier_steps(case_of([10, 16])).outlier_steps


def test_rank_with_the_largest_difference_is_named() -> None:
    one, other = unlike(s4=30), unlike(s4=40)
    assert "step 4 took rank 1 40.0 ms, the others 10.0 ms" in without_outlier_steps(case_of(one, other)).outlier_steps
    assert "step 4 took rank 0 40.0 ms, the others 10.0 ms" in without_outlier_steps(case_of(other, one)).outlier_steps
    worse = without_outlier_steps(case_of(unlike(s1=16, s2=30))).outlier_steps
    assert worse.startswith("step 2 (and 1 more like it) took rank 0 30.0 ms")
    assert "the findings describe the longest run of steps without it" in worse
    many = without_outlier_steps(case_of(unlike(s1=30, s4=30, s8=30))).outlier_steps
    assert many.startswith("step 1 (and 2 more like it)")
    assert "all steps, including outliers" in many


def test_cpu_processes_keep_all_steps() -> None:
    cpu = case_of(unlike(s4=30), cpu=True)
    assert kept(cpu) == list(range(1, 9))
    assert without_outlier_steps(cpu).outlier_steps


def test_unprofiled_steps_decide_whether_long_steps_are_outliers() -> None:
    """With three steps of 30 ms the mean is 17.5 ms.

    Steps of 30 ms stay if unprofiled steps are nearer to 17.5 than to 10 ms.
    """
    case = case_of(unlike(s4=30, s6=30, s8=30))
    assert kept(case) == list(range(1, 9))
    assert kept(run_of(case, [13.7, 13.8])) == [1, 2, 3]
    assert kept(run_of(case, [13.74, 13.77])) == list(range(1, 9))  # nearer to 17.5 ms than to 10 ms
    assert kept(run_of(case, [9.0, 9.1])) == [1, 2, 3]


def likely(share: float, *, world: int = 1) -> str:
    """Return the title of the likely cause if a copy takes `share` percent of each step of 10 ms; "" without one."""
    trace = TraceBuilder(0, world_size=world)
    for number in range(6):
        trace.step(number * 10_000).compute(0, 10_000 - round(share * 100)).copy(10_000 - round(share * 100), 10_000)
    timeline = build_timeline([trace.build()])
    causes = likely_causes(Case(timeline=timeline, attribution=attribute(timeline)), "why")
    return causes[0].title if causes else ""


def test_bucket_is_a_likely_cause_from_five_percent_on() -> None:
    assert likely(4.9) == "compute-bound (95 %); nothing else takes over 5 %"
    assert likely(5.0) == "copies between CPU and GPU: up to 0.5 ms (5 % of a step)"
