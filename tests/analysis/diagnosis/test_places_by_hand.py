"""Test between which calls a thread records nothing, and which calls are slow, in steps with a few calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis import places
from gpudiag.analysis.diagnosis.places import (
    _describe,
    _outermost,
    _processes,
    before_first_operator,
    few_slow_calls,
    slow_operators,
    stalls,
)
from tests.analysis.diagnosis.cases import case_of
from tests.timeline_builder import LOADER, TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.case import Case

COLLECTING = "gpudiag.gc"
Call = tuple[str, int, int]


def job(*ranks: Sequence[Call]) -> Case:
    """Make CPU processes, given as their calls in each step of 20 ms."""
    traces = []
    for rank, calls in enumerate(ranks):
        trace = TraceBuilder(rank, world_size=len(ranks), origin_ns=10**18 + 10**6 * rank)
        for step in range(5):
            trace.step(20_000 * step)
            for name, start, end in calls:
                (trace.annotation if name in {COLLECTING, LOADER, "mine"} else trace.operator)(start, end, name)
        traces.append(trace.build())
    return case_of(traces)


def pausing(*until: int) -> list[Call]:
    """Make calls `a`, `b`, `c`, … with a pause before each start time in `until`.

    The last call lasts until the step's end.
    """
    calls = [("a", 0, 1000)]
    for place, at in enumerate(until):
        calls.append(("bcdef"[place], at, at + 500 if place < len(until) - 1 else 19_990))
    return calls


def pauses_of(case: Case, *ranks: int, common: bool = False) -> list[tuple[str, float]]:
    return [(place.words, place.ms_per_step) for place in stalls(case, ranks, common=common)]


def test_pauses_are_named_by_the_calls_around_them_longest_first() -> None:
    case = job(pausing(2000, 5500), pausing(4000))
    assert pauses_of(case, 0) == [("after b and before c", 3.0), ("after a and before b", 1.0)]
    # By default the length of a pause is its longest length on any rank.
    assert pauses_of(case, 0, 1) == [("after a and before b", 3.0), ("after b and before c", 3.0)]
    # With `common`, the length of a pause is its lower median over the ranks; a rank without the pause counts as zero.
    assert pauses_of(case, 0, 1, common=True) == [("after a and before b", 1.0)]
    three = job(pausing(2000, 5500), pausing(4000, 6500), pausing(3000))
    assert pauses_of(three, 0, 1, 2, common=True) == [("after a and before b", 2.0), ("after b and before c", 2.0)]
    assert pauses_of(case) == []


@pytest.mark.parametrize(("collected", "collecting"), [(1001, True), (1000, False)])
def test_pause_is_garbage_collection_if_most_of_it_is(collected: int, *, collecting: bool) -> None:
    case = job([("a", 0, 1000), (COLLECTING, 1200, 1200 + collected), ("b", 3000, 19_990)])
    (place,) = stalls(case, [0])
    assert (place.words, place.ms_per_step, place.collecting) == ("after a and before b", 2.0, collecting)


def test_pause_before_the_first_operator_is_named_by_the_previous_call() -> None:
    case = job([("a", 2000, 19_000)], [("a", 1000, 5000), ("b", 5001, 18_000)])
    assert before_first_operator(case, [0]) == "after a and before a"
    assert before_first_operator(case, [1]) == "after b and before a"
    assert before_first_operator(case, [0, 1]) == "after a and before a"
    assert before_first_operator(case, []) == ""


def outermost(*calls: Call, latest: bool) -> str:
    """Return the name of the outermost call that ends last (`latest`) or starts first."""
    events: Any = SimpleNamespace(
        start_ns=np.array([start * 1000 for _, start, _ in calls], np.int64),
        end_ns=np.array([end * 1000 for _, _, end in calls], np.int64),
        name_of=lambda row: calls[row][0],
    )
    return _outermost(events, np.arange(len(calls)), events.end_ns if latest else events.start_ns, latest=latest)


def test_outermost_of_nested_calls_is_named() -> None:
    calls = (("inner", 10, 90), ("outer", 0, 100), ("before", 0, 40))
    assert outermost(*calls, latest=True) == "outer"
    assert outermost(("inner", 10, 90), ("outer", 50, 100), latest=False) == "inner"
    # The calls end within 50 µs of each other.
    assert outermost(("long", 0, 950), ("last", 990, 1000), latest=True) == "long"
    assert outermost(("long", 0, 949), ("last", 990, 1000), latest=True) == "last"
    assert outermost(("first", 0, 10), ("long", 50, 900), latest=False) == "long"
    assert outermost(("first", 0, 10), ("long", 51, 900), latest=False) == "first"
    assert outermost(latest=True) == ""


def test_location_includes_the_surrounding_range() -> None:
    case = job([("a", 0, 1000), ("mine", 1500, 19_000), ("b", 3000, 18_000)])
    track, events = case.tracks[0], case.timeline.traces[0].events

    def between(start: int, end: int) -> str:
        return _describe(track, events, (20_000 + start) * 1000, (20_000 + end) * 1000)

    assert between(1600, 2900) == "after a and before b, in mine"
    assert between(1100, 1400) == "after a and before mine"
    assert _describe(track, events, -10, -5) == "before a"
    assert _describe(track, events, 10**12, 10**12 + 5).startswith("after ")
    assert _describe(track, events, 0, 10**12) == "between its operators"


def test_slow_calls_are_per_step_and_process() -> None:
    slow, fast = [("a", 0, 1000), ("b", 1001, 3001), ("b", 3002, 5002), ("c", 5003, 5500)], [("c", 0, 400)]
    assert slow_operators(job(slow), [0]) == {"b": (4.0, 2.0), "a": (1.0, 1.0)}
    assert slow_operators(job(slow, fast), [0, 1]) == {"b": (2.0, 1.0), "a": (0.5, 0.5)}
    assert slow_operators(job(slow, slow), [0, 1]) == {"b": (4.0, 2.0), "a": (1.0, 1.0)}
    assert slow_operators(job(slow, fast), [1]) == {}
    # A call counts once even if a nested call interrupts it.
    ((own_ms, times),) = slow_operators(job([("a", 0, 3000), ("c", 1000, 1001)]), [0]).values()
    assert own_ms == pytest.approx(2.999)
    assert times == 1


@pytest.mark.parametrize(("rest", "few"), [(2.0, True), (2.1, False)])
def test_slow_calls_are_few_if_two_names_have_half_of_their_time(
    monkeypatch: pytest.MonkeyPatch, rest: float, *, few: bool
) -> None:
    slow = {"a": (3.0, 1.0), "b": (1.0, 1.0), "c": (rest, 1.0), "d": (2.0, 1.0)}
    monkeypatch.setattr(places, "slow_operators", lambda *_: slow)
    assert few_slow_calls(SimpleNamespace(), ()) == (slow if few else {})  # type: ignore[arg-type]  # unused


def test_several_devices_of_a_process_count_once() -> None:
    tracks = [
        SimpleNamespace(trace=trace, rank=rank, window_steps=[1]) for trace, rank in ((1, 1), (0, 0), (1, 1), (2, 2))
    ]
    case: Any = SimpleNamespace(tracks=tracks)
    assert [track.trace for track in _processes(case, (0, 1))] == [0, 1]
    assert [id(track) for track in _processes(case, (1,))] == [id(tracks[0])]
