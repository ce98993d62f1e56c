"""What tells traces of several runs from those of one, a number below and a number above."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.validity.mixed_runs import doubts
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
    """One rank with steps of these lengths, in ms, and collectives that ended then, matched or not.

    `others` are collectives of other groups or operations before them: (operation, group, ranks).
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
        instance = [*[UNKNOWN] * len(others), *(at if one else UNKNOWN for at, one in enumerate(matched))]
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


def said(*ranks: Rank, lossy: Sequence[int] = ()) -> str:
    found = doubts([one.trace for one in ranks], [one.track for one in ranks], lossy)
    assert [one.code for one in found] in ([], ["mixed-runs"])
    return found[0].message if found else ""


def test_two_ranks_of_one_run_are() -> None:
    assert said(Rank(0), Rank(1)) == ""


def test_ranks_that_say_other_worlds_are_not_of_one() -> None:
    assert "the job has 2 and 4 ranks; most" not in said(Rank(0), Rank(1, world=4))
    assert "they say that the job has 2 and 4 ranks" in said(Rank(0, world=4), Rank(1, world=2), Rank(2, world=4))
    assert said(Rank(0), Rank(1, world=None)) == ""


@pytest.mark.parametrize(
    ("shorter", "told"),
    [
        ((10, 10, 10), False),
        ((7, 7, 6), False),  # 10 ms less over three steps, as long as the longest
        ((7, 7, 5.9), True),
    ],
)
def test_ranks_that_exchange_in_every_step_do_not_drift_apart(shorter: tuple[float, ...], *, told: bool) -> None:
    found = said(Rank(0), Rank(1, steps=shorter), Rank(2, steps=(9, 9, 9)))
    assert ("which exchange in every step" in found) == told
    if told:
        assert "a step takes 10.0 ms on rank 0 and 6.6 ms on rank 1" in found


def test_a_pause_of_one_rank_is_no_drift() -> None:
    assert said(Rank(0, steps=(10, 10, 40)), Rank(1)) == ""
    assert said(Rank(0), Rank(1, steps=(10, 10, 40))) == ""


@pytest.mark.parametrize(("ends", "told"), [((5, 15, 25), True), ((5, 15), False)])
def test_those_that_exchange_less_often_may(ends: tuple[float, ...], *, told: bool) -> None:
    assert bool(said(Rank(0, ends=ends), Rank(1, steps=(1, 1, 1)))) == told
    assert bool(said(Rank(0), Rank(1, steps=(1, 1, 1), ends=ends))) == told


def test_so_may_those_that_recorded_other_steps_or_none() -> None:
    assert said(Rank(0), Rank(1, steps=(1, 1, 1), numbers=(1, 2, 3))) == ""
    assert said(Rank(0, steps=()), Rank(1, steps=(1, 1, 1))) == ""
    # A group of which nothing can be said does not hide the next.
    odd = ("1", (2, 3))
    assert said(
        Rank(2, numbers=(5, 6, 7), group=odd), Rank(3, group=odd), Rank(0), Rank(1, steps=(1, 1, 1))
    ).startswith("these traces are not of one run: a step takes 10.0 ms on rank 0 and 1.0 ms on rank 1")


def test_only_lanes_of_one_group_and_of_several_traces_are_compared() -> None:
    short = (1, 1, 1)
    assert said(Rank(0), Rank(1, steps=short, group=("1", (0, 1)))) == ""
    assert said(Rank(0), Rank(1, steps=short, group=("0", (1, 2)))) == ""
    assert said(Rank(0), Rank(1, steps=short, trace=0), Rank(2, group=("2", (2,)))) == ""
    nameless = ("", ())
    assert said(Rank(0, group=nameless), Rank(1, steps=short, group=nameless)) == ""
    assert said(Rank(0, group=("", (0, 1))), Rank(1, steps=short, group=("", (0, 1)))) != ""
    sends = ("send", "0", (0, 1))
    assert said(Rank(0, ends=(), others=[sends] * 4), Rank(1, steps=short, ends=(), others=[sends] * 4)) == ""


ALONE = "most collectives of {} match no other rank's"


@pytest.mark.parametrize(
    ("matched", "told"),
    [((True, True, False, False), False), ((True, False, False, False), True), ((False,) * 4, True)],
)
def test_half_of_what_another_rank_saw_must_match(matched: tuple[bool, ...], *, told: bool) -> None:
    found = said(Rank(0), Rank(1, matched=matched))
    assert (ALONE.format("rank 1") in found) == told == bool(found)


def test_of_both_that_match_nothing_both_are_named() -> None:
    assert ALONE.format("ranks 0, 1") in said(Rank(0, matched=False), Rank(1, matched=False))


def test_fewer_than_four_do_not_match_by_chance() -> None:
    assert said(Rank(0), Rank(1, ends=(5, 15, 25), matched=False)) == ""
    assert said(Rank(0), Rank(1, ends=(5, 15, 25, 35), matched=False)) != ""


def test_what_only_one_capture_saw_need_not_match() -> None:
    late = Rank(1, ends=(5, 15, 25, 35, 45, 55, 65, 75), matched=(True, True, False, False, False, False, False, False))
    assert said(Rank(0), late) == ""
    early = Rank(1, ends=(-35, -25, -15, 5, 15, 25, 35), matched=(False, False, False, True, True, False, False))
    assert said(Rank(0), early) == ""
    # But what does counts only there.
    elsewhere = Rank(1, ends=(5, 15, 25, 35, 45, 55), matched=(True, False, False, False, True, True))
    assert ALONE.format("rank 1") in said(Rank(0), elsewhere)


def test_one_of_several_others_is_enough_to_have_seen_them() -> None:
    group = ("0", (0, 1, 2))
    first, second = Rank(0, ends=(5, 10, 15, 20), group=group), Rank(2, ends=(25, 30, 35, 40), group=group)
    of_both = Rank(1, ends=(15, 20, 25, 30), matched=False, group=group)
    assert ALONE.format("rank 1") in said(first, of_both, second)


def test_captures_that_do_not_overlap_match_nothing() -> None:
    later = (105, 115, 125, 135)
    assert ALONE.format("ranks 0, 1") in said(Rank(0, matched=False), Rank(1, ends=later, matched=False))
    # One that matches by another clock is enough.
    assert said(Rank(0), Rank(1, ends=later, matched=(True, False, False, False))) == ""
    # Of an other that saw hardly any nothing is known.
    assert said(Rank(0, ends=(5, 15, 25)), Rank(1, ends=later, matched=False)) == ""
    assert said(Rank(0, ends=(5, 15, 25, 35)), Rank(1, ends=later, matched=False)) != ""


def test_of_a_rank_that_lost_some_too_few_match_for_that_reason() -> None:
    assert said(Rank(0), Rank(1, matched=False), lossy=[1]) == ""
    assert said(Rank(0, matched=False), Rank(1, matched=False), lossy=[1]) == ""
    group = ("0", (0, 1, 2))
    three = [Rank(number, matched=False, group=group) for number in range(3)]
    assert ALONE.format("ranks 0, 2") in said(*three, lossy=[1])


def test_two_lanes_of_one_trace_are_no_others() -> None:
    assert said(Rank(0, matched=False), Rank(0, matched=False, trace=0)) == ""


def recorded(rank: int, after_s: float, *, communication: bool = False) -> Trace:
    """Steps that begin so long after 2001."""
    built = TraceBuilder(rank, world_size=2, origin_ns=10**18 + int(after_s * NS_PER_S))
    for step in range(6):
        built.step(step * 1000).compute(0, 400 + step)
        if communication:
            built.collective(500 + step, 600 + 7 * step, ranks=(0, 1), size_bytes=8, sequence=step)
    return replace(built.build(), source=f"{rank}.json")


def mixed(*traces: Trace) -> str:
    return " ".join(one.message for one in build_timeline(traces).validity if one.code == "mixed-runs")


def test_recordings_one_after_another_are_of_two_runs() -> None:
    assert mixed(recorded(0, 0), recorded(1, 0.5)) == ""
    assert mixed(recorded(0, 0), recorded(1, 9)) == ""
    assert "1.json begins 60 s after 0.json has ended" in mixed(recorded(0, 0), recorded(1, 60))
    assert "0.json begins 60 s after 1.json has ended" in mixed(recorded(0, 60), recorded(1, 0))


def test_clocks_that_do_not_count_from_1970_do_not_tell_runs_apart() -> None:
    assert mixed(replace(recorded(0, 0), origin_ns=5), recorded(1, 60)) == ""


def test_recordings_whose_collectives_match_are_of_one_run_whatever_their_clocks_say() -> None:
    assert mixed(recorded(0, 0, communication=True), recorded(1, 60, communication=True)) == ""


def test_two_real_recordings_of_tensorflow_in_one_folder_are_two_runs(tmp_path: Path) -> None:
    for source in ("tensorflow/mirrored_nccl", "tensorflow_exchange/mirrored_cpu"):
        path = TRACES / f"{source}.xplane.pb.gz"
        shutil.copy(path, tmp_path / path.name)
    analysis = analyze([tmp_path])
    (message,) = [one.message for one in analysis.validity if one.code == "mixed-runs"]
    assert "mirrored_cpu.xplane.pb.gz begins 116 s after" in message
