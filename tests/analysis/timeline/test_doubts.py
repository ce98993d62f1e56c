"""Test each warning about a recording, with values just below and just above its threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.collectives import Matching
from gpudiag.analysis.timeline.completeness import (
    DeviceActivity,
    device_activities,
    incomplete_activity,
    ranks_in_words,
)
from gpudiag.analysis.timeline.rank_events import events_of_rank
from gpudiag.analysis.timeline.validity import _clocks, _missing_ranks
from gpudiag.model.timeline import ClockAlignment
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from gpudiag.model.event import Trace


def warnings_of(*traces: Trace) -> dict[str, str]:
    return {warning.code: warning.message for warning in build_timeline(traces).validity}


@pytest.mark.parametrize(
    ("launches", "lost", "lossy"),
    [(500, 10, True), (500, 9, False), (501, 10, False), (550, 11, True), (100, 10, True), (20, 9, False)],
)
def test_kernels_count_as_lost_above_ten_and_two_percent(launches: int, lost: int, *, lossy: bool) -> None:
    assert DeviceActivity(launches, lost, missing=False).lossy == lossy
    assert not DeviceActivity(launches, lost, missing=True).lossy


def activities(*traces: Trace) -> tuple[DeviceActivity, ...]:
    return device_activities(traces, [events_of_rank(trace) for trace in traces])


def activity(trace: TraceBuilder) -> tuple[int, int, bool]:
    (found,) = activities(trace.build())
    return found.launches, found.lost, found.missing


def test_only_launches_between_the_first_and_last_executed_launch_count() -> None:
    trace = TraceBuilder().runtime(0, 1, correlation=90).compute(20, 30, launch=5).runtime(7, 8, correlation=91)
    trace.runtime(9, 10, "cudaLaunchHostFunc", correlation=92).runtime(11, 12).compute(40, 50, launch=15)
    assert activity(trace.runtime(18, 19, correlation=93)) == (3, 1, False)
    assert activity(TraceBuilder().compute(0, 5, launch=None).runtime(1, 2, correlation=9)) == (0, 0, False)


def test_device_work_is_missing_if_most_launches_have_no_work() -> None:
    half = TraceBuilder().memset(5, 6, launch=1).runtime(2, 3, correlation=90)
    assert activity(half) == (2, 1, False)
    assert activity(half.runtime(4, 5, correlation=91)) == (3, 2, True)
    assert activity(TraceBuilder().copy(5, 6, launch=1)) == (1, 0, False)
    assert activity(TraceBuilder().operator(0, 5)) == (0, 0, False)
    used = replace(TraceBuilder().operator(0, 5).build(), uses_devices=True)
    assert activities(used)[0].missing
    # Device work is missing too if the trace of a second rank shows communication with the first rank on devices.
    other = TraceBuilder(1).collective(5, 9, ranks=(0, 1)).build()
    silent = TraceBuilder(0).operator(0, 5).build()
    assert [activity.missing for activity in activities(silent, other)] == [True, False]
    on_hosts = TraceBuilder(1).operator(0, 5).gloo(5, 9, ranks=(0, 1)).build()
    assert [activity.missing for activity in activities(silent, on_hosts)] == [False, False]


def test_lost_launches_are_summed_over_lossy_ranks() -> None:
    traces = [TraceBuilder(rank).operator(0, 5).build() for rank in range(3)]
    activities = [
        DeviceActivity(100, 20, missing=False),
        DeviceActivity(1000, 0, missing=False),
        DeviceActivity(100, 30, missing=False),
    ]
    (one,) = incomplete_activity(traces, activities)
    assert one.code == "lost-kernels"
    assert one.message.startswith("50 of 200 launches (25 %) of ranks 0, 2 have no device op")
    missing = [DeviceActivity(0, 0, missing=rank == 1) for rank in range(3)]
    (one,) = incomplete_activity(traces, missing)
    assert "but no kernel of rank 1 was recorded: what those did is not known, and waiting" in one.message
    (one,) = incomplete_activity(traces, [DeviceActivity(0, 0, missing=True)] * 3)
    assert "but no kernel was recorded: what those did is not known. Record" in one.message


@pytest.mark.parametrize(("covered", "thin"), [(100, False), (99, True)])
def test_a_recording_is_thin_if_it_covers_less_than_a_tenth_of_the_steps(covered: int, *, thin: bool) -> None:
    traces = []
    for rank, length in enumerate((covered, 900)):
        trace = TraceBuilder(rank, world_size=2)
        for step in range(5):
            trace.step(1000 * step).compute(0, length)
        traces.append(trace.build())
    messages = warnings_of(*traces)
    assert ("thin-recording" in messages) == thin
    if thin:
        assert "cover 9.9 % of the steps of rank 0:" in messages["thin-recording"]


def test_step_marks_do_not_count_as_covered_time() -> None:
    trace = TraceBuilder().steps(5, 1000, lambda trace: trace.compute(0, 50).operator(200, 250))
    assert "thin-recording" not in warnings_of(trace.build())
    assert "thin-recording" in warnings_of(
        TraceBuilder().steps(5, 1000, lambda trace: trace.compute(0, 50).operator(40, 99)).build()
    )


@pytest.mark.parametrize(("steps", "few"), [(5, False), (4, True)])
def test_fewer_than_three_analysed_steps_give_a_warning(steps: int, *, few: bool) -> None:
    messages = warnings_of(TraceBuilder().steps(steps, 100, lambda trace: trace.compute(0, 90)).build())
    assert ("few-steps" in messages) == few
    if few:
        assert messages["few-steps"].startswith("2 step(s) could be analysed")
        assert "Record 5 or more" in messages["few-steps"]


def test_source_of_unmarked_steps_is_reported_once() -> None:
    marked = TraceBuilder(0).steps(5, 100, lambda trace: trace.compute(0, 90)).build()
    assert "no-step-marks" not in warnings_of(marked)
    stepping = TraceBuilder(1)
    for step in range(5):
        stepping.step(100 * step, mark=None).compute(0, 70).optimizer(80, 90)
    alone = TraceBuilder(2).step(0, mark=None).compute(0, 70)
    messages = warnings_of(marked, stepping.build(), alone.build())["no-step-marks"]
    assert messages.startswith(
        "the trace has no step marks: steps were taken from the ends of Optimizer.step; no repetition was found either"
    )
    assert "Call prof.step() each step" in messages


def test_different_steps_are_reported() -> None:
    def trace(rank: int, first: int) -> Trace:
        built = TraceBuilder(rank, world_size=2)
        for step in range(5):
            built.step(100 * step, number=first + step).compute(0, 90)
        return built.build()

    assert "different-steps" not in warnings_of(trace(0, 3), trace(1, 3))
    assert "different-steps" not in warnings_of(trace(0, 3), trace(1, 4))
    assert "different-steps" in warnings_of(trace(0, 3), trace(1, 90))


def test_missing_ranks_have_no_trace_or_are_in_groups() -> None:
    traces = [TraceBuilder(rank).operator(0, 5).build() for rank in (0, 2)]
    nothing = Matching([], [], [], set(), False)
    (one,) = _missing_ranks(traces, 4, nothing, frozenset())
    assert one.message.startswith("2 of 4 ranks missing (1, 3):")
    assert _missing_ranks(traces[:1], 1, nothing, frozenset()) == []
    (one,) = _missing_ranks(traces[:1], 1, Matching([], [], [], {7}, False), frozenset())
    assert one.message.startswith("1 of 1 ranks missing (7):")


@pytest.mark.parametrize(("residual", "skewed"), [(100_000, False), (100_001, True)])
def test_clocks_within_a_tenth_of_a_millisecond_agree(residual: int, *, skewed: bool) -> None:
    clocks = [
        ClockAlignment(rank=rank, offset_ns=0, residual_ns=ns, matched=5)
        for rank, ns in ((1, 50_000), (2, residual), (3, 60_000))
    ]
    warnings = _clocks(Matching([], [], clocks, set(), False))
    assert [warning.code for warning in warnings] == (["clock-skew"] if skewed else [])
    if skewed:
        assert "±0.10 ms (worst: rank 2)" in warnings[0].message
    assert len(_clocks(Matching([], [], clocks, set(), True))) == 1 + skewed


def test_lost_events_are_summed() -> None:
    traces = [
        replace(TraceBuilder(rank).steps(5, 100, lambda trace: trace.compute(0, 90)).build(), dropped_events=rank + 1)
        for rank in range(2)
    ]
    assert warnings_of(*traces)["dropped-events"].startswith("the profiler lost 3 events")
    assert "dropped-events" not in warnings_of(replace(traces[0], dropped_events=0))


def test_at_most_eight_ranks_are_named() -> None:
    assert ranks_in_words(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert ranks_in_words(range(9)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, …"
    assert ranks_in_words([None, 0]) == "rank 0"
