"""Test steps, and the device windows cut from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.timeline import build_timeline
from gpudiag.trace import read_traces
from gpudiag.units import NS_PER_MS, NS_PER_US
from tests.timeline_builder import TraceBuilder

TRACES = Path(__file__).parents[2] / "traces"

if TYPE_CHECKING:
    from gpudiag.model.event import Trace
    from gpudiag.model.timeline import DeviceTrack


def track_of(trace: TraceBuilder | Trace) -> DeviceTrack:
    (track,) = build_timeline([trace.build() if isinstance(trace, TraceBuilder) else trace]).tracks
    return track


def windows(track: DeviceTrack) -> list[tuple[int, int, int]]:
    """Return (step number, begin, end) in microseconds."""
    bounds = (track.bounds // NS_PER_US).tolist()
    return list(zip(track.window_steps.tolist(), bounds[:-1], bounds[1:], strict=True))


def test_first_and_last_step_are_left_out() -> None:
    track = track_of(TraceBuilder().steps(5, 100, lambda s: s.compute(10, 90)))
    assert windows(track) == [(1, 110, 210), (2, 210, 310), (3, 310, 410)]


def test_work_belongs_to_the_step_that_launched_it() -> None:
    """The host is one and a half steps ahead, so the kernels of step k run while the host is in step k + 1 or k + 2."""
    trace = TraceBuilder()
    for step in range(6):
        trace.step(100 * step).compute(150, 240)
    track = track_of(trace)
    assert windows(track) == [(1, 250, 350), (2, 350, 450), (3, 450, 550), (4, 550, 650)]
    assert track.ops.step.tolist() == [0, 1, 2, 3, 4, 5]


def test_work_launched_before_the_trace_belongs_to_no_step() -> None:
    trace = TraceBuilder().compute(0, 40, launch=None).steps(4, 100, lambda s: s.compute(50, 90), first=0)
    track = track_of(trace)
    assert track.ops.step.tolist()[0] == -1
    assert windows(track) == [(1, 150, 250), (2, 250, 350)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (1, [(0, 10, 90)]),
        (2, [(0, 0, 100), (1, 100, 190)]),
        (3, [(1, 100, 200), (2, 200, 290)]),
        (4, [(1, 110, 210), (2, 210, 310)]),
    ],
)
def test_up_to_four_steps_have_windows_and_a_warning(steps: int, expected: list[tuple[int, int, int]]) -> None:
    timeline = build_timeline([TraceBuilder().steps(steps, 100, lambda s: s.compute(10, 90).operator(0, 20)).build()])
    assert windows(timeline.tracks[0]) == expected
    assert [v.code for v in timeline.validity] == ["few-steps"]


def few(*ops: int, last_mark_until: int = 0, before: bool = False) -> DeviceTrack:
    """Return marked steps of 100 µs, step i with `ops[i]` ops of 20 µs each; the host runs ahead of the device.

    An operator of the last step ends `last_mark_until` µs after the step's begin, if given. `before` adds an op that
    was launched before the trace and ends in the first step.
    """
    trace = TraceBuilder()
    if before:
        trace.compute(-20, 20, launch=None)
    for number, count in enumerate(ops):
        trace.step(100 * number)
        for index in range(count):
            trace.compute(10 + 20 * index, 30 + 20 * index, launch=10 if index == 0 else 11)
    if last_mark_until:
        trace.operator(0, last_mark_until)
    return track_of(trace)


def test_last_of_three_steps_is_used_if_the_device_works_beyond_its_mark() -> None:
    assert windows(few(4, 4, 4)) == [(1, 100, 200), (2, 200, 290)]
    assert windows(few(4, 4, 4, last_mark_until=95)) == [(0, 10, 110), (1, 110, 210)]
    assert windows(few(4, 4, 4, last_mark_until=95, before=True)) == [(1, 110, 210)]


def test_two_of_three_steps_contain_their_input_waits() -> None:
    """If windows began at the first op of each step, the first window would contain the second step's wait."""
    trace = TraceBuilder()
    for begin, wait in ((0, 40), (60, 20), (100, 70)):
        trace.step(begin).loader(0, wait).compute(wait, wait + 25, launch=wait)
    assert windows(track_of(trace)) == [(1, 65, 105), (2, 105, 195)]


def test_first_of_two_steps_is_left_out_if_it_contains_earlier_work() -> None:
    assert windows(few(4, 4)) == [(0, 0, 100), (1, 100, 190)]
    assert windows(few(4, 4, before=True)) == [(0, 10, 110)]


def test_last_step_is_left_out_if_its_mark_has_no_length() -> None:
    trace = TraceBuilder().steps(2, 100, lambda s: s.compute(10, 90))
    assert windows(track_of(trace)) == [(0, 10, 110)]


def test_incomplete_last_step_is_left_out() -> None:
    assert windows(few(4, 4, 3)) == [(0, 10, 110), (1, 110, 210)]
    assert windows(few(4, 4, 3, before=True)) == [(1, 110, 210)]
    assert windows(few(3, 4, 3)) == [(1, 110, 210)]


def test_first_of_three_steps_is_left_out_if_its_work_was_queued() -> None:
    """The first op of the first step starts 30 µs after its launch, because of work that was not recorded."""
    trace = TraceBuilder()
    for number, ops in enumerate((2, 2, 1)):
        trace.step(200 * number).compute(50, 70, launch=(10, 20)).operator(91, 150)
        if ops == 2:
            trace.compute(70, 90, launch=(20, 30))
    assert windows(track_of(trace)) == [(1, 250, 450)]


def test_both_steps_of_a_published_recording_of_two_are_used() -> None:
    (trace,) = read_traces([TRACES / "public" / "sampled_rank-1.json.gz"])
    track = track_of(trace)
    assert track.window_steps.tolist() == [551, 552]
    assert [round(ns / NS_PER_MS, 1) for ns in np.diff(track.bounds).tolist()] == [608.0, 630.6]


def layers(trace: TraceBuilder, count: int) -> TraceBuilder:
    """Add `count` layers of two kernels of 10 µs each."""
    for layer in range(count):
        begin = 20 * layer
        trace.compute(begin, begin + 9, "gemm", launch=begin).compute(begin + 10, begin + 19, "norm", launch=begin + 10)
    return trace


def test_repeated_layers_within_a_range_are_one_step() -> None:
    timeline = build_timeline([layers(TraceBuilder(), 12).annotation(0, 250, "forward").build()])
    (track,) = timeline.tracks
    assert (track.steps.source, windows(track)) == ("range", [(0, 0, 239)])
    assert timeline.unit == "recording"  # a range that does not repeat may not be a step


def test_repeated_layers_without_a_range_are_a_repeated_unit() -> None:
    timeline = build_timeline([layers(TraceBuilder(), 12).build()])
    assert timeline.tracks[0].steps.source == "pattern"
    assert timeline.unit == "repeated-unit"


def test_repeating_ranges_are_steps_with_the_work_after_them() -> None:
    """The range of each forward pass contains a third of the step's launches; the nested range is not a step."""
    trace = TraceBuilder()
    for step in range(5):
        layers(trace.step(400 * step, mark=None), 9)
        trace.annotation(0, 70, "forward").annotation(5, 40, "block").annotation(300, 310, "log")
    (track,) = build_timeline([trace.build()]).tracks
    assert track.steps.source == "range"
    assert windows(track) == [(1, 400, 800), (2, 800, 1200), (3, 1200, 1600)]


def test_ranges_at_unequal_launches_are_no_steps() -> None:
    """Each step has three ranges of collectives, with unequal numbers of launches between them."""
    trace = TraceBuilder()
    for step in range(5):
        trace.step(400 * step, mark=None)
        for index in range(18):
            trace.compute(10 * index, 10 * index + 9, f"kernel {index}", launch=10 * index)
        for begin in (0, 20, 120):
            trace.annotation(begin, begin + 2, "all_reduce")
    (track,) = build_timeline([trace.build()]).tracks
    assert track.steps.source == "pattern"
    assert {end - begin for _, begin, end in windows(track)[:-1]} == {400}


def test_calls_of_the_whole_model_are_steps() -> None:
    """The trace has stacks; calls of the model's layers are nested."""
    trace = TraceBuilder()
    for step in range(5):
        layers(trace.step(400 * step, mark=None), 9)
        trace.python(0, 195, "nn.Module: Net_0")
        for layer in range(9):
            trace.python(20 * layer, 20 * layer + 15, f"nn.Module: Linear_{layer}")
    (track,) = build_timeline([trace.build()]).tracks
    assert track.steps.source == "range"
    assert windows(track) == [(1, 400, 800), (2, 800, 1200), (3, 1200, 1600)]


def test_steps_of_very_different_length_keep_their_length() -> None:
    trace = TraceBuilder()
    for at in (0, 10, 1000, 1003, 1500):
        trace.step(at).compute(1, 3)
    assert windows(track_of(trace)) == [(1, 11, 1001), (2, 1001, 1004), (3, 1004, 1501)]


def test_step_without_launches_gives_its_time_to_the_previous_step() -> None:
    """The step in the middle evaluates on the host and launches nothing."""
    trace = TraceBuilder()
    for step in range(6):
        trace.step(100 * step)
        if step != 3:
            trace.compute(10, 90)
    assert windows(track_of(trace)) == [(1, 110, 210), (2, 210, 410), (4, 410, 510)]


def test_repeated_step_numbers_are_replaced_by_counts() -> None:
    trace = TraceBuilder()
    for step, number in enumerate((7, 8, 7, 8, 9)):
        trace.step(100 * step, number=number).compute(10, 90)
    assert track_of(trace).window_steps.tolist() == [1, 2, 3]


def test_marks_without_numbers_get_counts() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(100 * step, mark="gpudiag.step").compute(10, 90)
    track = track_of(trace)
    assert (track.steps.source, track.window_steps.tolist()) == ("gpudiag.step", [1, 2, 3])


def test_copy_that_overtakes_its_step_does_not_reorder_windows() -> None:
    trace = TraceBuilder().steps(5, 100, lambda s: s.compute(50, 130))
    trace.step(400, mark=None).copy(-250, -240, launch=1)  # the copy was launched in step 4 and ran during step 1
    track = track_of(trace)
    assert (np.diff(track.bounds) > 0).all()


def test_steps_without_marks_begin_after_the_optimizer() -> None:
    trace = TraceBuilder()
    for step in range(6):
        trace.step(100 * step, mark=None).compute(10, 80, launch=5).optimizer(85, 95)
    timeline = build_timeline([trace.build()])
    (track,) = timeline.tracks
    assert track.steps.source == "optimizer"
    assert np.diff(track.bounds).tolist() == [100 * NS_PER_US] * 3
    assert "no-step-marks" in {v.code for v in timeline.validity}


def test_repeating_pattern_is_found_without_marks_and_optimizer() -> None:
    trace = TraceBuilder()
    for step in range(8):
        trace.step(100 * step, mark=None).copy(5, 8, launch=1)
        for kernel in range(6):
            trace.compute(10 + 10 * kernel, 18 + 10 * kernel, f"kernel{kernel}", launch=2 + kernel)
    track = track_of(trace)
    assert track.steps.source == "pattern"
    assert set(np.diff(track.bounds).tolist()) == {100 * NS_PER_US}


def test_pattern_of_kernels_alone_is_found() -> None:
    """All launch calls have the same name, so only the names of kernels show where the pattern repeats."""
    trace = TraceBuilder()
    for step in range(8):
        trace.step(100 * step, mark=None)
        for kernel in range(6):
            trace.compute(10 + 10 * kernel, 18 + 10 * kernel, f"kernel{kernel % 4}", launch=2 + kernel)
    track = track_of(trace)
    assert track.steps.source == "pattern"
    assert set(np.diff(track.bounds).tolist()) == {100 * NS_PER_US}


def test_trace_without_steps_is_one_window() -> None:
    timeline = build_timeline([TraceBuilder().compute(10, 30, launch=1).compute(50, 95, launch=2).build()])
    (track,) = timeline.tracks
    assert track.steps.source == "none"
    assert (track.bounds // NS_PER_US).tolist() == [10, 95]
    assert {v.code for v in timeline.validity} == {"no-step-marks", "few-steps"}


def test_ranks_are_cut_to_their_common_steps() -> None:
    early = TraceBuilder(0).steps(7, 100, lambda s: s.compute(10, 90))
    late = TraceBuilder(1)
    for number in range(2, 9):
        late.step(100 * number, number=number).compute(10, 90)
    a, b = build_timeline([early.build(), late.build()]).tracks
    assert a.window_steps.tolist() == b.window_steps.tolist() == [3, 4, 5]
    assert a.bounds.tolist() == b.bounds.tolist()


def test_ranks_without_common_steps_keep_their_steps_with_a_note() -> None:
    early = TraceBuilder(0).steps(4, 100, lambda s: s.compute(10, 90))
    late = TraceBuilder(1)
    for number in range(10, 14):
        late.step(100 * number, number=number).compute(10, 90)
    timeline = build_timeline([early.build(), late.build()])
    assert [track.window_steps.tolist() for track in timeline.tracks] == [[1, 2], [11, 12]]
    assert "different-steps" in {v.code for v in timeline.validity}


def test_devices_of_one_process_have_separate_windows() -> None:
    trace = TraceBuilder()
    trace.steps(5, 100, lambda s: s.on(0).compute(10, 60).on(1).compute(20, 70))
    first, second = build_timeline([trace.build()]).tracks
    assert [first.label, second.label] == ["cuda:0", "cuda:1"]
    assert (second.bounds - first.bounds).tolist() == [10 * NS_PER_US] * 4


def test_graph_launch_gives_all_kernels_to_its_step() -> None:
    trace = TraceBuilder().steps(4, 100, lambda s: s.graph((5, 9), (20, 40), (40, 70), (70, 115)))
    track = track_of(trace)
    assert track.ops.step.tolist() == [step for step in range(4) for _ in range(3)]
    assert windows(track) == [(1, 120, 220), (2, 220, 320)]


def test_traces_without_a_rank_get_free_ranks() -> None:
    unnamed = TraceBuilder(None).steps(3, 100, lambda s: s.compute(1, 9)).build()
    zero = TraceBuilder(0).steps(3, 100, lambda s: s.compute(1, 9)).build()
    timeline = build_timeline([unnamed, zero])
    assert timeline.ranks_present == (0, 1)
    assert "repaired-input" in {v.code for v in timeline.validity}


def test_recording_without_compute_has_no_track_and_a_remedy() -> None:
    timeline = build_timeline([TraceBuilder().annotation(0, 5, "my range").build()])
    assert timeline.tracks == ()
    (message,) = [warning.message for warning in timeline.validity if warning.code == "missing-device-activity"]
    assert "no device activity, no host operators, no step marks" in message


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 60),
)
def test_windows_have_no_gaps_and_no_overlaps(steps: list[tuple[int, int, int]], ahead: int) -> None:
    """The property holds for any lengths of steps and ops, and any lead of the host."""
    trace, at = TraceBuilder(), 0
    for length, duration, kernels in steps:
        trace.step(at)
        for kernel in range(kernels):
            trace.compute(ahead + kernel, ahead + kernel + duration)
        at += length
    if all(kernels == 0 for _, _, kernels in steps):
        return
    track = track_of(trace)
    assert (np.diff(track.bounds) > 0).all()
    assert len(track.window_steps) == len(track.bounds) - 1 >= 1
    assert (np.diff(track.window_steps) > 0).all()


def test_timeline_work_grows_linearly() -> None:
    """The work per step is the same for four times as many steps. Work is counted in calls of Python and NumPy instead
    of seconds."""
    import cProfile
    import pstats

    from gpudiag.analysis.attribution import attribute

    def calls(steps: int) -> int:
        """Return the number of function calls that a timeline with `steps` steps takes."""
        traces = [
            TraceBuilder(rank, world_size=2)
            .steps(steps, 40 * 10, lambda s: s.sync(1, 3).compute(10, 90, launch=4).collective(200, 300, ranks=(0, 1)))
            .build()
            for rank in range(2)
        ]
        profiler = cProfile.Profile()
        profiler.enable()
        attribute(build_timeline(traces))
        profiler.disable()
        return int(pstats.Stats(profiler).total_calls)  # type: ignore[attr-defined]  # typeshed leaves it out

    assert calls(800) <= 6 * calls(200)


def test_step_times_in_milliseconds() -> None:
    track = track_of(TraceBuilder(unit_ns=NS_PER_MS).steps(4, 30, lambda s: s.compute(0, 25)))
    assert np.diff(track.bounds).tolist() == [30 * NS_PER_MS] * 2
