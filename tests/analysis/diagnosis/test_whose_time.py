"""Test to which functions and operators time is attributed, and which savings remain after each fix."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.diagnosis.explained import path_of_fixes
from gpudiag.analysis.diagnosis.places import innermost, time_in, user_frames
from gpudiag.analysis.diagnosis.rules.late_cause import MoreOperators, more_operators
from gpudiag.model.event import Role
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.test_scoring import cause, scored, summed
from tests.examples import examples
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

Frame = tuple[str, int, int]


def events(*frames: Frame, thread: Sequence[int] | int = 1, role: Role = Role.USER_FUNCTION) -> Any:
    """Make calls (name, start, end) sorted by start; calls with lower-case names are not the user's."""
    return SimpleNamespace(
        start_ns=np.array([start for _, start, _ in frames], np.int64),
        end_ns=np.array([end for _, _, end in frames], np.int64),
        role=np.array([role if name[:1].isupper() else Role.OTHER for name, _, _ in frames], np.int64),
        thread=np.broadcast_to(np.array(thread, np.int64), len(frames)),
        name_of=lambda row: frames[row][0],
    )


@st.composite
def nested(draw: st.DrawFn, begin: int = 0, end: int = 40, depth: int = 0) -> list[Frame]:
    """Make nested calls, sorted by start."""
    found: list[Frame] = []
    while begin < end and draw(st.booleans()):
        start = draw(st.integers(begin, end - 1))
        stop = draw(st.integers(start + 1, end))
        found.append((draw(st.sampled_from("ABCx")), start, stop))
        if depth < 3:
            found += draw(nested(start, stop, depth + 1))
        begin = stop
    return found


@given(nested(), st.integers(-5, 45), st.integers(-5, 45))
@examples(100)
def test_time_belongs_to_the_innermost_function(frames: list[Frame], begin: int, end: int) -> None:
    users = [frame for frame in frames if frame[0].isupper()]
    instant_by_instant = Counter[str]()
    for at in range(begin, end):
        around = [name for name, start, stop in users if start <= at < stop]
        instant_by_instant.update(around[-1:])
    assert +Counter(time_in(events(*frames), 1, begin, end)) == instant_by_instant


def test_time_is_limited_to_the_span_of_the_thread() -> None:
    frames = events(("A", 0, 10), ("B", 2, 12), ("A", 20, 30), thread=[1, 1, 2])
    assert time_in(frames, 1, 0, 100) == {"A": 2, "B": 8}
    assert time_in(frames, 2, 0, 100) == {"A": 10}
    assert time_in(frames, 1, 10, 100) == {"B": 2}
    assert time_in(frames, 1, 12, 100) == {}


def test_function_around_an_event_is_the_innermost_of_its_thread() -> None:
    frames = events(
        ("A", 0, 100), ("B", 10, 50), ("x", 20, 30), ("x", 20, 60), ("C", 20, 90), ("x", 50, 51), ("x", 200, 201),
        thread=[1, 1, 1, 1, 2, 1, 1],
    )  # fmt: skip
    assert user_frames(frames, [2, 3, 5, 6]) == {"B": 1, "A": 2}
    assert user_frames(frames, [2, 2]) == {"B": 2}
    assert user_frames(events(("x", 0, 1)), [0]) == {}


@pytest.mark.parametrize(("end", "found"), [(16, "B"), (15, "A"), (100, "A")])
def test_span_belongs_to_the_function_that_covers_most_of_it(end: int, found: str) -> None:
    """The shortest call that covers most of a span (here from 10 to 20) gets the span's time."""
    frames = events(("A", 0, 90), ("B", 10, end), ("C", 5, 95))
    assert innermost(frames, np.arange(3), 10, 20) == found
    assert innermost(frames, np.array([1]), 10, 20) == ("" if end == 15 else "B")
    assert innermost(frames, np.array([1]), 14 - end, 0) == ""


def more(**own_ms: float) -> str:
    return MoreOperators(own_ms=own_ms, calls={}, own_work=True).words()


def test_operators_are_named_by_the_operator_with_most_time() -> None:
    assert more(a=5) == "in a"
    assert more(a=5, b=4) == "in a"
    assert more(a=5, b=5) == "in a, b"
    assert more(a=5, b=4, c=1) == "in a, b and others"
    assert more(a=5.1, b=4, c=1) == "in a"


def ranks(*operators: dict[str, tuple[float, int]]) -> MoreOperators | None:
    """Return the excess of rank 1; each rank is given as operator → (ms, calls) per step."""
    traces = []
    for rank, called in enumerate(operators):
        trace = TraceBuilder(rank, world_size=len(operators))
        for step in range(5):
            trace.step(step * 100_000).compute(99_000, 99_900, launch=90_000)
            at = 10
            for name, (ms, count) in called.items():
                for _ in range(count):
                    trace.operator(at, at + round(1000 * ms), name)
                    at += round(1000 * ms) + 10
        traces.append(trace.build())
    return more_operators(case_of(traces), (1,))


def near(**values: float) -> Any:
    return pytest.approx(values)


def test_excess_of_a_late_rank_is_over_the_mean_of_its_peers() -> None:
    excess_by_name = ranks({"mm": (5, 2)}, {"mm": (8, 2), "sort": (3, 1)}, {"mm": (6, 2)})
    assert excess_by_name is not None
    assert excess_by_name.own_ms == near(mm=5, sort=3)
    assert excess_by_name.calls == near(mm=0, sort=1)
    assert not excess_by_name.own_work
    assert list(excess_by_name.own_ms) == ["mm", "sort"]


def test_additional_work_is_called_more_often() -> None:
    excess_by_name = ranks({"mm": (5, 2)}, {"mm": (6.4, 2), "sort": (3, 1), "pad": (0.1, 1)})
    assert excess_by_name is not None
    assert (excess_by_name.own_work, excess_by_name.own_ms) == (True, near(sort=3, pad=0.1))
    assert excess_by_name.calls == near(sort=1, pad=1)
    # Most of the excess is in calls that all ranks make equally often.
    excess_by_name = ranks({"mm": (5, 2)}, {"mm": (6.6, 2), "sort": (3, 1), "pad": (0.1, 1)})
    assert excess_by_name is not None
    assert (excess_by_name.own_work, excess_by_name.own_ms) == (False, near(mm=3.2, sort=3, pad=0.1))
    # Calls that the late rank makes less often and that take less time do not count.
    excess_by_name = ranks({"mm": (5, 3), "sort": (1, 1)}, {"mm": (4, 2), "sort": (4, 1)})
    assert excess_by_name is not None
    assert excess_by_name.own_ms == near(sort=3)


def test_only_the_first_names_are_listed_and_none_without_peers() -> None:
    excess_by_name = ranks({}, {f"op{at}": (8 - at, 1) for at in range(7)})
    assert excess_by_name is not None
    assert list(excess_by_name.own_ms) == ["op0", "op1", "op2", "op3", "op4"]
    assert ranks({"mm": (5, 1)}, {"mm": (4, 1)}) is None
    assert (
        more_operators(case_of([TraceBuilder().steps(5, 100, lambda trace: trace.compute(0, 90)).build()]), (0,))
        is None
    )


def test_order_of_fixes_omits_fixes_without_further_savings() -> None:
    job = summed(50, other=30, a=30, b=20, c=20)
    found, _ = scored(job, [cause("input-bound", "waste", "a"), cause("b"), cause("host-sync", "waste", "c")])
    path = path_of_fixes(job, found)
    assert [(fix.code, fix.step_ms, fix.then) for fix in path] == [
        ("input-bound", 70, "compute"),
        ("b", 50, "compute"),
    ]
    found, _ = scored(summed(30, other=30, a=30, b=20, c=20), [cause("a"), cause("host-sync", "waste", "b")])
    assert [(fix.code, fix.then) for fix in path_of_fixes(summed(30, other=30, a=30, b=20, c=20), found)] == [
        ("a", "sync"),
        ("host-sync", "compute"),
    ]
    assert path_of_fixes(job, []) == ()


def test_means_of_several_late_ranks_and_peers_are_compared() -> None:
    traces = []
    for rank, (ms, count) in enumerate(((5, 1), (9, 2), (7, 1), (6, 2))):
        trace = TraceBuilder(rank, world_size=4)
        for step in range(5):
            trace.step(step * 100_000).compute(99_000, 99_900, launch=90_000)
            for place in range(count):
                trace.operator(10_000 * place, 10_000 * place + 1000 * ms, "mm")
        traces.append(trace.build())
    operators = more_operators(case_of(traces), (1, 3))
    assert operators is not None
    assert operators.own_ms == near(mm=(18 + 12) / 2 - (5 + 7) / 2)
    assert operators.calls == near(mm=1)
