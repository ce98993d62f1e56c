"""Test the share of a recording that the analysed steps represent, and the warning about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.completeness import covered_share
from gpudiag.trace import read_traces
from gpudiag.units import NS_PER_MS
from tests.analysis.diagnosis.cases import diagnosis_of
from tests.timeline_builder import TraceBuilder
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from gpudiag.model.timeline import DeviceTrack


def recording(after_ms: int, *, before_ms: int = 4, last_ms: int = 9) -> TraceBuilder:
    """Build the example of `covered_share`: work before the marks, four steps, and work after the steps.

    Arguments are times of device work in ms: after the steps, before them, and in the last step.
    """
    trace = TraceBuilder(unit_ns=NS_PER_MS).compute(0, before_ms, launch=None)
    for at, busy in ((100, 20), (200, 21), (300, 20), (400, last_ms)):
        trace.step(at).compute(0, busy)
    return trace.compute(last_ms, last_ms + after_ms, launch=last_ms) if after_ms else trace


def track_of(trace: TraceBuilder) -> DeviceTrack:
    (track,) = build_timeline([trace.build()]).tracks
    return track


def partial(trace: TraceBuilder) -> list[str]:
    """Return the messages of warnings about partial coverage."""
    return [
        warning.message for warning in build_timeline([trace.build()]).validity if warning.code == "partial-coverage"
    ]


def test_coverage_of_the_worked_example() -> None:
    assert covered_share(track_of(recording(60))) == pytest.approx((20 + 21 + 20 + 21) / 130)


def test_marked_steps_cover_a_recording_without_other_work() -> None:
    assert covered_share(track_of(recording(0, before_ms=0))) == 1
    assert covered_share(track_of(recording(0))) == 1


def test_overlapping_work_counts_once() -> None:
    trace = recording(60)
    for at in (100, 200, 300, 400):
        trace.step(at, mark=None).compute(0, 9, stream=8)
    assert covered_share(track_of(trace)) == pytest.approx(82 / 130)


def test_a_cpu_process_is_covered_by_its_operators() -> None:
    trace = TraceBuilder(unit_ns=NS_PER_MS)
    for at, busy in ((100, 20), (200, 21), (300, 20), (400, 69)):
        trace.step(at).operator(0, busy)
    track = track_of(trace)
    assert track.is_cpu
    assert covered_share(track) == pytest.approx(82 / 130)


def test_a_cpu_process_is_covered_by_its_collectives_too() -> None:
    """Operators of the training thread are short, and the analysed steps have none."""
    trace = TraceBuilder(0, world_size=2, unit_ns=NS_PER_MS).operator(-20, -19)
    for at in (100, 200, 300, 400, 500):
        trace.step(at).gloo(2, 42, ranks=(0, 1))
    trace.operator(60, 61)
    track = track_of(trace)
    assert track.is_cpu
    assert covered_share(track) == pytest.approx(200 / 202, abs=0.006)


def test_advice_for_partial_coverage_depends_on_marks() -> None:
    assert partial(recording(60))[0].endswith("Record more steps and nothing else.")
    trace = TraceBuilder(unit_ns=NS_PER_MS).compute(0, 500, launch=-1)
    for at in (600, 700, 800, 900):
        trace.step(at, mark=None).compute(0, 20).optimizer(20, 30)
    assert partial(trace)[0].endswith("Mark the steps, or record fewer things at once.")


def test_below_seventy_percent_the_outside_work_is_reported() -> None:
    """The last step of 9 ms and all work after it count as at most one step."""
    (message,) = partial(recording(60))
    assert "hold 41.0 ms of the recorded device work; 20.0 ms are before them and 69.0 ms after" in message
    assert "apply to 63 % of the recording" in message
    assert partial(recording(47)) == []  # the analysed steps cover 82 of 117 ms
    assert len(partial(recording(48))) == 1  # the analysed steps cover 82 of 118 ms


def test_least_covered_rank_decides_about_the_warning() -> None:
    traces = [TraceBuilder(rank, world_size=2, unit_ns=NS_PER_MS) for rank in range(2)]
    for trace in traces:
        for at in range(100, 600, 100):
            trace.step(at).compute(0, 20)
    traces[1].compute(20, 99, launch=20)
    timeline = build_timeline([trace.build() for trace in traces])
    assert timeline.covered == pytest.approx(100 / 179)
    assert [warning.code for warning in timeline.validity if warning.code == "partial-coverage"] == ["partial-coverage"]


@pytest.mark.parametrize(("after", "concluded"), [(0, True), (400, False)])
def test_no_compute_bound_finding_with_partial_coverage(after: int, *, concluded: bool) -> None:
    trace = TraceBuilder(0, world_size=1, unit_ns=NS_PER_MS)
    for at in range(0, 600, 100):
        trace.step(at).compute(0, 99)
    if after:
        trace.compute(99, 99 + after, launch=99)
    findings, validity = diagnosis_of([trace.build()])
    assert ("compute-bound" in findings) == concluded
    assert ("partial-coverage" in validity) != concluded


@pytest.mark.parametrize(("before", "concluded"), [(0, True), (400, False)])
def test_no_compute_bound_finding_from_a_single_step(before: int, *, concluded: bool) -> None:
    trace = TraceBuilder(0, world_size=1, unit_ns=NS_PER_MS)
    if before:
        trace.compute(-before - 1, -1, launch=-before - 2)
    findings, validity = diagnosis_of([trace.step(0).compute(0, 99).build()])
    assert ("cannot-tell" in validity) != concluded
    assert ("compute-bound" in findings) == concluded
    assert ("partial-coverage" in validity) != concluded


def test_single_range_at_the_end_is_reported_as_partial() -> None:
    """In PARAM's AlexNet all device work is in one range of 12.9 s, after 30 s of setup."""
    (trace,) = read_traces([TRACES / "public" / "benchmark_result_alexnet.json.gz"])
    (message,) = [warning.message for warning in build_timeline([trace]).validity if warning.code == "partial-coverage"]
    assert "12920.2 ms of the 43424.3 ms" in message
