"""Test how traces of several runs are detected, with values just below and just above each threshold."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.mixed_runs import mixed_runs
from gpudiag.app.analyze import analyze
from gpudiag.model.event import CollectiveCall
from gpudiag.model.timeline import UNKNOWN
from gpudiag.units import NS_PER_MS, NS_PER_S
from tests.timeline_builder import TraceBuilder
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpudiag.model.event import Trace

PAIR = ("0", (0, 1))


class Rank:
    """A rank of which only steps and collectives are known.

    Args:
        steps, ends: lengths of its steps, and ends of its all-reduces, in ms.
        matched: whether its all-reduces (or each of them) match those of another rank.
        numbers: numbers of its steps; by default from 0.
        group: (name, ranks) of the group of its all-reduces.
        others: earlier collectives of different groups or operations: (operation, group, ranks).
        trace, world: number of its trace, by default `rank`; world size that the trace states.
    """

    def __init__(
        self,
        rank: int,
        *,
        steps: Sequence[float] = (10, 10, 10),
        ends: Sequence[float] = (5, 15, 25, 35),
        matched: Sequence[bool] | bool = True,
        numbers: Sequence[int] | None = None,
        group: tuple[str, tuple[int, ...]] = PAIR,
        others: Sequence[tuple[str, str, tuple[int, ...]]] = (),
        trace: int | None = None,
        world: int | None = 2,
    ) -> None:
        calls = [*others, *[("all_reduce", *group)] * len(ends)]
        matched = [matched] * len(ends) if isinstance(matched, bool) else matched
        instance = [*[UNKNOWN] * len(others), *(at if match else UNKNOWN for at, match in enumerate(matched))]
        self.trace: Any = SimpleNamespace(
            world_size=world,
            origin_ns=0,
            collectives=[
                CollectiveCall(row=row, operation=operation, group=name, group_ranks=ranks)
                for row, (operation, name, ranks) in enumerate(calls)
            ],
        )
        self.track: Any = SimpleNamespace(
            rank=rank,
            trace=rank if trace is None else trace,
            bounds=np.concatenate([[0], np.cumsum(steps)]) * NS_PER_MS,
            window_steps=np.arange(len(steps)) if numbers is None else np.array(numbers),
            collectives=SimpleNamespace(
                row=np.arange(len(calls)),
                end=np.array([*[-100.0] * len(others), *ends]) * NS_PER_MS,
                instance=np.array(instance),
            ),
        )


def warning(*ranks: Rank, lossy: Sequence[int] = ()) -> str:
    views: Any = [SimpleNamespace(end_ns=0)] * len(ranks)
    warnings = mixed_runs([rank.trace for rank in ranks], views, [rank.track for rank in ranks], lossy)
    assert [warning.code for warning in warnings] in ([], ["mixed-runs"])
    return warnings[0].message if warnings else ""


def test_two_ranks_of_one_run_give_no_warning() -> None:
    assert warning(Rank(0), Rank(1)) == ""


def test_ranks_with_different_world_sizes_are_mixed() -> None:
    assert "the job has 2 and 4 ranks; most" not in warning(Rank(0), Rank(1, world=4))
    assert "they say that the job has 2 and 4 ranks" in warning(Rank(0, world=4), Rank(1, world=2), Rank(2, world=4))
    assert warning(Rank(0), Rank(1, world=None)) == ""


@pytest.mark.parametrize(
    ("shorter", "reported"),
    [
        ((10, 10, 10), False),
        ((7, 7, 6), False),  # three steps are 10 ms shorter in total, which is the length of the longest step
        ((7, 7, 5.9), True),
    ],
)
def test_ranks_that_communicate_in_every_step_do_not_drift(shorter: tuple[float, ...], *, reported: bool) -> None:
    message = warning(Rank(0), Rank(1, steps=shorter), Rank(2, steps=(9, 9, 9)))
    assert ("which communicate in every step" in message) == reported
    if reported:
        assert "a step takes 10.0 ms on rank 0 and 6.6 ms on rank 1" in message


def test_a_pause_of_one_rank_is_no_drift() -> None:
    assert warning(Rank(0, steps=(10, 10, 40)), Rank(1)) == ""
    assert warning(Rank(0), Rank(1, steps=(10, 10, 40))) == ""


@pytest.mark.parametrize(("ends", "reported"), [((5, 15, 25), True), ((5, 15), False)])
def test_ranks_that_communicate_less_often_may_drift(ends: tuple[float, ...], *, reported: bool) -> None:
    assert bool(warning(Rank(0, ends=ends), Rank(1, steps=(1, 1, 1)))) == reported
    assert bool(warning(Rank(0), Rank(1, steps=(1, 1, 1), ends=ends))) == reported


def test_ranks_with_different_steps_are_not_compared() -> None:
    assert warning(Rank(0), Rank(1, steps=(1, 1, 1), numbers=(1, 2, 3))) == ""
    assert warning(Rank(0, steps=()), Rank(1, steps=(1, 1, 1))) == ""
    # A group that cannot be compared does not hide the next group.
    odd = ("1", (2, 3))
    assert warning(
        Rank(2, numbers=(5, 6, 7), group=odd), Rank(3, group=odd), Rank(0), Rank(1, steps=(1, 1, 1))
    ).startswith("these traces are not of one run: a step takes 10.0 ms on rank 0 and 1.0 ms on rank 1")


def test_tracks_are_compared_within_a_group_and_between_traces() -> None:
    short = (1, 1, 1)
    assert warning(Rank(0), Rank(1, steps=short, group=("1", (0, 1)))) == ""
    assert warning(Rank(0), Rank(1, steps=short, group=("0", (1, 2)))) == ""
    assert warning(Rank(0), Rank(1, steps=short, trace=0), Rank(2, group=("2", (2,)))) == ""
    nameless = ("", ())
    assert warning(Rank(0, group=nameless), Rank(1, steps=short, group=nameless)) == ""
    assert warning(Rank(0, group=("", (0, 1))), Rank(1, steps=short, group=("", (0, 1)))) != ""
    sends = ("send", "0", (0, 1))
    assert warning(Rank(0, ends=(), others=[sends] * 4), Rank(1, steps=short, ends=(), others=[sends] * 4)) == ""


ALONE = "most collectives of {} match no other rank's"


@pytest.mark.parametrize(
    ("matched", "reported"),
    [((True, True, False, False), False), ((True, False, False, False), True), ((False,) * 4, True)],
)
def test_half_of_the_collectives_another_rank_recorded_must_match(matched: tuple[bool, ...], *, reported: bool) -> None:
    message = warning(Rank(0), Rank(1, matched=matched))
    assert (ALONE.format("rank 1") in message) == reported == bool(message)


def test_both_ranks_without_matches_are_named() -> None:
    assert ALONE.format("ranks 0, 1") in warning(Rank(0, matched=False), Rank(1, matched=False))


def test_fewer_than_four_collectives_are_not_judged() -> None:
    assert warning(Rank(0), Rank(1, ends=(5, 15, 25), matched=False)) == ""
    assert warning(Rank(0), Rank(1, ends=(5, 15, 25, 35), matched=False)) != ""


def test_collectives_in_only_one_trace_need_not_match() -> None:
    late = Rank(1, ends=(5, 15, 25, 35, 45, 55, 65, 75), matched=(True, True, False, False, False, False, False, False))
    assert warning(Rank(0), late) == ""
    early = Rank(1, ends=(-35, -25, -15, 5, 15, 25, 35), matched=(False, False, False, True, True, False, False))
    assert warning(Rank(0), early) == ""
    # Matches outside of the other rank's trace do not count.
    elsewhere = Rank(1, ends=(5, 15, 25, 35, 45, 55), matched=(True, False, False, False, True, True))
    assert ALONE.format("rank 1") in warning(Rank(0), elsewhere)


def test_collectives_that_any_other_rank_recorded_must_match() -> None:
    group = ("0", (0, 1, 2))
    first, second = Rank(0, ends=(5, 10, 15, 20), group=group), Rank(2, ends=(25, 30, 35, 40), group=group)
    of_both = Rank(1, ends=(15, 20, 25, 30), matched=False, group=group)
    assert ALONE.format("rank 1") in warning(first, of_both, second)


def test_traces_that_do_not_overlap_match_nothing() -> None:
    later = (105, 115, 125, 135)
    assert ALONE.format("ranks 0, 1") in warning(Rank(0, matched=False), Rank(1, ends=later, matched=False))
    # A single match of collectives on different clocks is enough.
    assert warning(Rank(0), Rank(1, ends=later, matched=(True, False, False, False))) == ""
    # A rank with too few recorded collectives cannot be judged.
    assert warning(Rank(0, ends=(5, 15, 25)), Rank(1, ends=later, matched=False)) == ""
    assert warning(Rank(0, ends=(5, 15, 25, 35)), Rank(1, ends=later, matched=False)) != ""


def test_lossy_ranks_are_not_judged() -> None:
    assert warning(Rank(0), Rank(1, matched=False), lossy=[1]) == ""
    assert warning(Rank(0, matched=False), Rank(1, matched=False), lossy=[1]) == ""
    group = ("0", (0, 1, 2))
    three = [Rank(number, matched=False, group=group) for number in range(3)]
    assert ALONE.format("ranks 0, 2") in warning(*three, lossy=[1])


def test_tracks_of_one_trace_are_not_compared() -> None:
    assert warning(Rank(0, matched=False), Rank(0, matched=False, trace=0)) == ""


def recorded(rank: int, after_s: float, *, communication: bool = False) -> Trace:
    """Record steps that begin `after_s` seconds after a date in 2001."""
    built = TraceBuilder(rank, world_size=2, origin_ns=10**18 + int(after_s * NS_PER_S))
    for step in range(6):
        built.step(step * 1000).compute(0, 400 + step)
        if communication:
            built.collective(500 + step, 600 + 7 * step, ranks=(0, 1), size_bytes=8, sequence=step)
    return replace(built.build(), source=f"{rank}.json")


def mixed(*traces: Trace) -> str:
    return " ".join(doubt.message for doubt in build_timeline(traces).validity if doubt.code == "mixed-runs")


def test_recordings_ten_seconds_apart_are_of_two_runs() -> None:
    assert mixed(recorded(0, 0), recorded(1, 0.5)) == ""
    assert mixed(recorded(0, 0), recorded(1, 9)) == ""
    assert "1.json begins 60 s after 0.json has ended" in mixed(recorded(0, 0), recorded(1, 60))
    assert "0.json begins 60 s after 1.json has ended" in mixed(recorded(0, 60), recorded(1, 0))


def test_clocks_that_do_not_count_from_1970_are_not_compared() -> None:
    assert mixed(replace(recorded(0, 0), origin_ns=5), recorded(1, 60)) == ""


def test_recordings_whose_collectives_match_are_of_one_run_despite_their_clocks() -> None:
    assert mixed(recorded(0, 0, communication=True), recorded(1, 60, communication=True)) == ""


@pytest.mark.apart
def test_two_real_recordings_of_tensorflow_in_one_folder_are_two_runs(tmp_path: Path) -> None:
    for source in ("tensorflow/mirrored_nccl", "tensorflow_exchange/mirrored_cpu"):
        path = TRACES / f"{source}.xplane.pb.gz"
        shutil.copy(path, tmp_path / path.name)
    analysis = analyze([tmp_path])
    (message,) = [doubt.message for doubt in analysis.validity if doubt.code == "mixed-runs"]
    assert "mirrored_cpu.xplane.pb.gz begins 116 s after" in message
