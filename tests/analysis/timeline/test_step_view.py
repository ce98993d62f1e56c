"""The steps that are kept for drawing, of a real job with a late rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpudiag.app.analyze import analyze_with_step
from gpudiag.model.step_view import UNMARKED_INPUT

if TYPE_CHECKING:
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
