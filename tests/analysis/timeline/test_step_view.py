"""The steps that are kept for drawing, of a real job with a late rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.step_view import view_of_step
from gpudiag.app.analyze import analyze_with_step
from gpudiag.model.step_view import UNMARKED_INPUT
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.step_view import StepView

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def late() -> StepView:
    """Two steps, in which rank 2's loader comes 40 ms late."""
    _, step = analyze_with_step([TRACES / "slow_loader_rank2"])
    assert step is not None
    return step


def test_the_late_rank_is_known_by_those_that_wait_for_it(late: StepView) -> None:
    assert {wait.on_rank for wait in late.waits if wait.length > late.length / 10} == {2}
    assert {wait.rank for wait in late.waits} == {0, 1, 3}
    assert all(0 <= wait.start <= wait.start + wait.length <= late.length for wait in late.waits)


def test_what_it_does_while_others_wait_has_a_name(late: StepView) -> None:
    """It recorded nothing: that is no blank, but taken for its input; and it is a part of what is idle."""
    silent = {}
    for rank in late.ranks:
        (track,) = (track for track in rank.tracks if track.kind == "buckets")
        named = zip(track.name, track.length, track.colour, strict=True)
        silent[rank.rank] = sum(ns for name, ns, _ in named if late.names[name] == UNMARKED_INPUT)
        assert {track.colour[i] for i, name in enumerate(track.name) if late.names[name] == UNMARKED_INPUT} <= {7}
    assert silent[2] > 30e6
    assert max(ns for rank, ns in silent.items() if rank != 2) < 1e6


def test_streams_say_what_runs_on_them(late: StepView) -> None:
    labels = [track.label for track in late.ranks[0].tracks if track.kind == "device"]
    assert labels == ["compute, stream 7", "communication, stream 19"]


def test_other_steps_are_kept_with_the_same_names(late: StepView) -> None:
    assert (late.step, [other.step for other in late.others]) == (5, [4])
    (other,) = late.others
    assert other.names == ()
    assert max(max(track.name, default=0) for rank in other.ranks for track in rank.tracks) < len(late.names)
    assert [rank.rank for rank in other.ranks] == [rank.rank for rank in late.ranks]


def of_lengths(lengths: Sequence[int], ranks: int = 1) -> StepView:
    """Steps of so many µs, in each a kernel and an all-reduce to which rank 0 comes late."""
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
    view = view_of_step(timeline, attribute(timeline))
    assert view is not None
    return view


def test_the_typical_step_is_the_last_near_the_median_and_the_others_go_from_the_shortest_to_the_longest() -> None:
    view = of_lengths([100, 101, 100, 300, 100, 102, 101, 400, 200])
    assert (view.step, view.length) == (7, 101_000)
    lengths = [other.length // 1000 for other in view.others]
    assert len(lengths) == 4
    assert {100, 400} <= set(lengths)
    assert [other.step for other in view.others] == sorted(other.step for other in view.others)
    assert of_lengths([100] * 5).step == 5
    assert of_lengths([100, 100, 100, 100, 500]).length == 100_000


def test_a_step_is_drawn_as_it_was() -> None:
    view = of_lengths([100, 100, 100], ranks=3)
    assert (view.length, view.ranks_left_out) == (100_000, 0)
    for rank in view.ranks:
        assert (rank.begin, rank.end) == (0, 100_000)
        compute, exchange = [track for track in rank.tracks if track.kind == "device"]
        assert (compute.start, compute.length) == ((0,), (50_000,))
        begin = 50_000 if rank.rank else 80_000
        assert (exchange.start, exchange.length) == ((begin,), (90_000 - begin,))
        (host,) = [track for track in rank.tracks if track.kind == "host"]
        drawn = {
            view.names[name]: (start, length, depth)
            for name, start, length, depth in zip(host.name, host.start, host.length, host.depth, strict=True)
        }
        assert (drawn["outer"], drawn["inner"]) == ((0, 40_000, 1), (10_000, 10_000, 2))
    waits = {(wait.rank, wait.on_rank, wait.start, wait.length) for wait in view.waits}
    assert waits == {(rank, 0, 50_000, 30_000) for rank in (1, 2)}
