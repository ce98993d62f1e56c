"""Test when the training thread of a CPU process waits inside an operator for a collective."""

from __future__ import annotations

import pytest

from gpudiag.analysis.timeline.host import awaited_inside
from tests.timeline_builder import TRAINING, TraceBuilder

#: Operator that enqueues the all-reduce.
ENQUEUE = "c10d::allreduce_"


def awaited(trace: TraceBuilder) -> list[tuple[int, int]]:
    """Return (start, end) of each wait of the training thread, in µs."""
    return [(start // 1000, end // 1000) for start, end in awaited_inside(trace.build(), TRAINING).pairs()]


def summed(*, end: int = 2000) -> TraceBuilder:
    """Record an autograd function that starts at 1000 µs and enqueues an all-reduce from 1100 to 1150 µs."""
    return TraceBuilder().operator(1000, end, "_Summed").operator(1100, 1150, ENQUEUE)


def test_operator_waits_until_the_collective_ends() -> None:
    assert awaited(summed().gloo(1120, 1900)) == [(1150, 1900)]
    assert awaited(summed().gloo(1120, 1500).gloo(1130, 1900)) == [(1150, 1900)]
    # Time in which the thread runs operators is not a wait.
    busy = summed().operator(1300, 1600).gloo(1120, 1200).gloo(1130, 1900)
    assert awaited(busy) == [(1150, 1200), (1600, 1900)]


def test_pause_without_a_collective_end_is_no_wait() -> None:
    assert awaited(summed()) == []
    assert awaited(summed().operator(1500, 1900).gloo(1120, 1850)) == []  # the collective ends while the thread is busy
    assert awaited(summed().gloo(1090, 1900)) == []  # the collective starts before it is enqueued
    assert awaited(summed().gloo(1100, 1900)) == [(1150, 1900)]
    # The collective runs on the waiting thread itself.
    assert awaited(summed().by(TRAINING).gloo(1120, 1900, thread=TRAINING)) == []


@pytest.mark.parametrize(
    ("end", "waits"),
    [(2001, [(1150, 2000)]), (2849, [(1150, 2000)]), (2850, []), (1150, []), (1151, [(1150, 1151)])],
)
def test_collective_that_ends_slightly_after_the_operator_ends_the_wait(end: int, waits: list[tuple[int, int]]) -> None:
    """The collective ends after the operator, by less than the operator's pause of 850 µs."""
    assert awaited(summed().gloo(1120, end)) == waits


@pytest.mark.parametrize(("end", "waits"), [(1180, [(1150, 1170)]), (1179, [])])
def test_short_pause_is_no_wait(end: int, waits: list[tuple[int, int]]) -> None:
    assert awaited(summed(end=end).gloo(1120, 1170)) == waits


def test_enqueue_outside_or_at_the_end_of_an_operator_does_not_wait() -> None:
    assert awaited(TraceBuilder().operator(1100, 1150, ENQUEUE).operator(1990, 1999).gloo(1120, 1900)) == []
    done = TraceBuilder().operator(1000, 1140, "_Summed").operator(1100, 1150, ENQUEUE).operator(1990, 1999)
    assert awaited(done.gloo(1120, 1900)) == []


def test_innermost_operator_around_the_enqueue_waits() -> None:
    trace = TraceBuilder().operator(500, 9000, "forward").operator(600, 700).operator(1000, 2000, "_Summed")
    trace.operator(1010, 1050, "aten::clone").operator(1100, 1150, ENQUEUE).gloo(1120, 1900).gloo(1130, 8000)
    assert awaited(trace) == [(1150, 1900)]
    # An operator that ended before the enqueue does not contain it.
    trace = TraceBuilder().operator(1000, 2000, "_Summed").operator(1010, 1090, "c10d::barrier").operator(1020, 1080)
    assert awaited(trace.operator(1100, 1150, ENQUEUE).gloo(1120, 1900)) == [(1150, 1900)]


def test_wait_begins_after_the_first_of_two_enqueues() -> None:
    twice = summed().operator(1200, 1250, ENQUEUE)
    assert awaited(twice.gloo(1120, 1190).gloo(1220, 1900)) == [(1150, 1190), (1250, 1900)]
    after = summed().operator(3000, 4000, "_Summed").operator(3100, 3150, ENQUEUE)
    assert awaited(after.gloo(1120, 1900).gloo(3110, 3900)) == [(1150, 1900), (3150, 3900)]


def test_waits_of_other_threads_do_not_count() -> None:
    trace = TraceBuilder().by(5).operator(1000, 2000, "_Summed").operator(1100, 1150, ENQUEUE).gloo(1120, 1900)
    assert awaited(trace) == []
