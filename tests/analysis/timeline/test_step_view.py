"""Test which steps are kept for drawing, with a real job that has a straggler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.step_view import _contents, _depths, _NameTable, _track, view_of_step
from gpudiag.app.analyze import analyze_with_step
from gpudiag.model.step_view import UNMARKED_INPUT
from tests.examples import examples
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.event import Trace
    from gpudiag.model.step_view import StepTrack, StepView

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def late() -> StepView:
    """Return two steps in which rank 2's loader is 40 ms late."""
    _, step = analyze_with_step([TRACES / "slow_loader_rank2"])
    assert step is not None
    return step


def test_straggler_is_named_by_the_waiting_ranks(late: StepView) -> None:
    assert {wait.on_rank for wait in late.waits if wait.length > late.length / 10} == {2}
    assert {wait.rank for wait in late.waits} == {0, 1, 3}
    assert all(0 <= wait.start <= wait.start + wait.length <= late.length for wait in late.waits)


def test_untraced_time_of_the_straggler_is_labelled(late: StepView) -> None:
    """The straggler's untraced time is shown as its input, and is part of its idle time."""
    silent = {}
    for rank in late.ranks:
        (track,) = (track for track in rank.tracks if track.kind == "buckets")
        named = zip(track.name, track.length, track.colour, strict=True)
        silent[rank.rank] = sum(ns for name, ns, _ in named if late.names[name] == UNMARKED_INPUT)
        assert {track.colour[i] for i, name in enumerate(track.name) if late.names[name] == UNMARKED_INPUT} <= {7}
    assert silent[2] > 30e6
    assert max(ns for rank, ns in silent.items() if rank != 2) < 1e6


def test_streams_are_labelled_by_content(late: StepView) -> None:
    labels = [track.label for track in late.ranks[0].tracks if track.kind == "device"]
    assert labels == ["compute, stream 7", "communication, stream 19"]


def test_all_kept_steps_share_names(late: StepView) -> None:
    assert (late.step, [other.step for other in late.others]) == (5, [4])
    (other,) = late.others
    assert other.names == ()
    assert max(max(track.name, default=0) for rank in other.ranks for track in rank.tracks) < len(late.names)
    assert [rank.rank for rank in other.ranks] == [rank.rank for rank in late.ranks]


def of_lengths(lengths: Sequence[int], ranks: int = 1, important: Sequence[int] = ()) -> StepView:
    """Make steps of 100, `lengths` and 100 µs, each with a kernel and an all-reduce that rank 0 enters late.

    The view must show the `important` ranks.
    """
    traces = []
    for rank in range(ranks):
        trace = TraceBuilder(rank, world_size=ranks)
        at = 0
        for length in (100, *lengths, 100):
            trace.step(at).operator(0, 40, "outer").operator(10, 20, "inner").compute(0, 50)
            trace.collective(50 if rank else 80, 90, ranks=tuple(range(ranks)))
            at += length
        traces.append(trace.build())
    timeline = build_timeline(traces)
    view = view_of_step(timeline, attribute(timeline), important=important)
    assert view is not None
    return view


def test_ranks_that_findings_name_are_shown_of_many() -> None:
    view = of_lengths([100, 100, 100], ranks=20, important=(17, 19))
    assert [rank.rank for rank in view.ranks] == [*range(14), 17, 19]
    assert (view.ranks_left_out, {other.ranks_left_out for other in view.others}) == (4, {4})


def test_typical_step_is_near_the_median_and_kept_steps_span_all_lengths() -> None:
    view = of_lengths([100, 101, 100, 300, 100, 102, 101, 400, 200])
    assert (view.step, view.length) == (7, 101_000)
    lengths = [other.length // 1000 for other in view.others]
    assert len(lengths) == 4
    assert {100, 400} <= set(lengths)
    assert [other.step for other in view.others] == sorted(other.step for other in view.others)
    assert of_lengths([100] * 5).step == 5
    assert of_lengths([100, 100, 100, 100, 500]).length == 100_000


def test_step_is_drawn_with_its_times() -> None:
    view = of_lengths([100, 100, 100], ranks=3)
    assert (view.length, view.ranks_left_out) == (100_000, 0)
    for rank in view.ranks:
        assert (rank.begin, rank.end) == (0, 100_000)
        compute, communication = [track for track in rank.tracks if track.kind == "device"]
        assert (compute.start, compute.length) == ((0,), (50_000,))
        begin = 50_000 if rank.rank else 80_000
        assert (communication.start, communication.length) == ((begin,), (90_000 - begin,))
        (host,) = [track for track in rank.tracks if track.kind == "host"]
        drawn = {
            view.names[name]: (start, length, depth)
            for name, start, length, depth in zip(host.name, host.start, host.length, host.depth, strict=True)
        }
        assert (drawn["outer"], drawn["inner"]) == ((0, 40_000, 1), (10_000, 10_000, 2))
    waits = {(wait.rank, wait.on_rank, wait.start, wait.length) for wait in view.waits}
    assert waits == {(rank, 0, 50_000, 30_000) for rank in (1, 2)}


def view_of(*traces: Trace) -> StepView:
    timeline = build_timeline(traces)
    view = view_of_step(timeline, attribute(timeline))
    assert view is not None
    return view


def drawn(view: StepView, kind: str, rank: int = 0) -> list[tuple[str, int, int, int, int]]:
    """Return (name, start in µs, length in µs, colour, depth) of all spans in the rows of one kind."""
    return [
        (view.names[name], start // 1000, length // 1000, colour, depth)
        for track in view.ranks[rank].tracks
        if track.kind == kind
        for name, start, length, colour, depth in zip(
            track.name, track.start, track.length, track.colour, track.depth, strict=True
        )
    ]


def test_host_is_drawn_four_deep_without_other_threads() -> None:
    """An operator has color 0, a range 1 and a runtime call 2; a span that crosses a step's edge is in both steps."""

    def step(trace: TraceBuilder) -> None:
        trace.annotation(10, 100, "deep").operator(20, 90, "deeper").runtime(30, 80, "call").operator(40, 50, "hidden")
        trace.operator(60, 60, "instant").by(5).operator(60, 70, "another").by(1)
        trace.compute(5, 190, launch=30)

    view = view_of(TraceBuilder().steps(5, 200, step).build())
    assert view.length == 200_000
    assert drawn(view, "host") == [
        ("ProfilerStep#3", -5, 200, 1, 0),
        ("deep", 5, 90, 1, 1),
        ("deeper", 15, 70, 0, 2),
        ("call", 25, 50, 2, 3),
        ("ProfilerStep#4", 195, 100, 1, 0),
    ]


def test_each_stream_has_a_row_and_all_buckets_share_a_row() -> None:
    def step(trace: TraceBuilder) -> None:
        trace.compute(0, 40).copy(40, 60).copy(10, 30, stream=9).collective(50, 95, ranks=(0, 1))

    view = view_of(TraceBuilder(world_size=2).steps(5, 100, step).build())
    labels = [(track.kind, track.label) for track in view.ranks[0].tracks]
    assert labels == [
        ("buckets", "where time goes"),
        ("device", "compute, stream 7"),
        ("device", "copy, stream 9"),
        ("device", "communication, stream 20"),
        ("host", "host"),
    ]
    colours = {name: colour for name, _, _, colour, _ in drawn(view, "device")}
    assert sorted(colours.values()) == [0, 1, 2]
    assert [(name, start, length) for name, start, length, _, _ in drawn(view, "buckets")] == [
        ("compute", 0, 40),
        ("copy", 40, 10),
        ("communication_transfer", 50, 45),
        ("idle", 95, 5),
    ]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20))))
@examples(50)
def test_depth_counts_enclosing_spans(given_spans: list[tuple[int, int]]) -> None:
    spans: list[tuple[int, int]] = []
    for start, length in sorted(given_spans, key=lambda span: (span[0], -span[1])):
        around = [end for begin, end in spans if end > start]
        spans.append((start, min([start + length, *around])))
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    counted = [sum(stop > start for _, stop in spans[:at]) for at, (start, _) in enumerate(spans)]
    assert _depths(begin, end).tolist() == counted


def test_stream_is_named_by_the_class_with_most_time() -> None:
    assert _contents(np.array([0, 0, 1]), np.array([10, 10, 19])) == "compute"
    assert _contents(np.array([0, 0, 1]), np.array([10, 10, 21])) == "communication"
    assert _contents(np.array([2]), np.array([1])) == "copy"


def spans(count: int) -> StepTrack:
    """Return the track of `count` spans: span i starts at i ns and takes i + 1 ns."""
    column = np.arange(count)
    return _track("device", "", (column + 100, 2 * column + 101, column, column), 100)


def test_shortest_of_very_many_spans_are_omitted() -> None:
    assert (spans(6000).left_out, spans(6000).start[:2], spans(6000).length[:2]) == (0, (0, 1), (1, 2))
    fewer = spans(6003)
    assert (fewer.left_out, len(fewer.start)) == (3, 6000)
    assert fewer.start == fewer.name == fewer.colour == tuple(range(3, 6003))
    assert set(fewer.depth) == {0}


def test_long_names_are_cut_and_stored_once() -> None:
    names = _NameTable()
    assert [names.index(name) for name in ("x" * 160, "y", "x" * 161, "x" * 159, "y")] == [0, 1, 0, 2, 1]


def late_by(*late: int, length: int = 1000, ranks: int = 2) -> StepView:
    """Make steps of `length` µs with successive collectives; rank 0 is late by `late` µs, one number per collective."""
    traces = []
    for rank in range(ranks):

        def step(trace: TraceBuilder, rank: int = rank) -> None:
            at = 1
            for wait in late:
                trace.collective(at if rank else at + wait, at + wait + 1, ranks=tuple(range(ranks)))
                at += wait + 2
            trace.compute(0, length - 1)

        traces.append(TraceBuilder(rank, world_size=ranks).steps(4, length, step).build())
    return view_of(*traces)


def test_waits_of_half_a_percent_are_drawn_longest_first() -> None:
    view = late_by(5, 4, 20)
    assert [(wait.rank, wait.on_rank, wait.start, wait.length) for wait in view.waits] == [
        (1, 0, 14_000, 20_000),
        (1, 0, 1000, 5000),
    ]
    many = late_by(*[12] * 97, 13, length=2400).waits
    assert [wait.length for wait in many] == [13_000, *[12_000] * 95]


def test_at_most_sixteen_ranks_are_drawn() -> None:
    view = late_by(20, ranks=18)
    assert ([rank.rank for rank in view.ranks], view.ranks_left_out) == ([*range(16)], 2)
    assert sorted(wait.rank for wait in view.waits) == [*range(1, 16)]
    assert late_by(20, ranks=16).ranks_left_out == 0
