"""Test the intervals in which host threads communicate, with values a µs below and above each limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.host import _holds, copies_beside, launched_within
from gpudiag.intervals import as_set
from gpudiag.model.event import EventKind, Role
from tests.timeline_builder import TRAINING, TraceBuilder

if TYPE_CHECKING:
    from gpudiag.model.event import Trace

Spans = dict[int, list[tuple[float, float]]]
COMMUNICATION = "gpudiag.exchange"


def spans(trace: TraceBuilder | Trace, *, calls: bool = False) -> Spans:
    """Return thread → intervals in µs; `calls` includes enqueues and bucket copies."""
    (track, *_) = build_timeline([trace.build() if isinstance(trace, TraceBuilder) else trace]).tracks
    of = track.communication_calls if calls else track.communication
    return {thread: [(a / 1000, b / 1000) for a, b in found.pairs()] for thread, found in of.items()}


def stepping(*, silent_until: int = 2000, begin: int = 1000, **ranges: tuple[int, int]) -> TraceBuilder:
    """Build a step of 5 ms: work until `begin` µs, and an update at `silent_until` µs.

    Thread 9 communicates meanwhile, from 100 to 600 µs or at the times `range`.
    """
    first, last = ranges.get("range", (100, 600))
    trace = (
        TraceBuilder(world_size=2).step(0).operator(0, begin).by(9).annotation(first, last, COMMUNICATION).by(TRAINING)
    )
    return trace.optimizer(silent_until, silent_until + 100).operator(silent_until, silent_until + 90).step(5000)


def test_thread_waits_for_communication_until_the_update() -> None:
    assert spans(stepping()) == {9: [(100, 600)], TRAINING: [(1000, 2000)]}
    assert spans(stepping(range=(100, 1200))) == {9: [(100, 1200)], TRAINING: [(1200, 2000)]}
    # Untraced time counts from half a millisecond on.
    assert spans(stepping(silent_until=1501)) == {9: [(100, 600)], TRAINING: [(1000, 1501)]}
    assert spans(stepping(silent_until=1500, begin=1001)) == {9: [(100, 600)]}
    assert spans(stepping().by(7).operator(-3800, -3100)) == {9: [(100, 600)]}


def test_communication_of_the_previous_step_does_not_count() -> None:
    trace = stepping().operator(0, 100).optimizer(3000, 3100).operator(3000, 3050).step(10_000)
    assert spans(trace) == {9: [(100, 600)], TRAINING: [(1000, 2000)]}
    before = TraceBuilder(world_size=2).step(0).operator(0, 100).optimizer(2000, 2100).operator(2000, 2050)
    before.by(9).annotation(3000, 3100, COMMUNICATION)
    assert spans(before.by(TRAINING).step(5000)) == {9: [(3000, 3100)]}


def test_updates_on_other_threads_do_not_wait() -> None:
    trace = (
        TraceBuilder(world_size=2)
        .step(0)
        .operator(0, 1000)
        .by(9)
        .annotation(100, 600, COMMUNICATION)
        .optimizer(3000, 3100)
    )
    assert spans(trace.by(TRAINING).step(5000)) == {9: [(100, 600)]}


def test_enqueues_and_bucket_copies_are_communication_calls() -> None:
    trace = (
        TraceBuilder(world_size=2)
        .step(0)
        .operator(0, 400)
        .operator(100, 150, "c10d::allreduce_")
        .annotation(300, 350, COMMUNICATION)
    )
    trace.by(9).operator(10, 20, "torch::distributed::reducer::mul_out").by(TRAINING).step(1000)
    assert spans(trace) == {TRAINING: [(300, 350)]}
    assert spans(trace, calls=True) == {TRAINING: [(100, 150), (300, 350)], 9: [(10, 20)]}


def test_range_around_launching_threads_counts_only_while_they_idle() -> None:
    trace = (
        TraceBuilder(world_size=2)
        .step(0)
        .annotation(0, 1000, COMMUNICATION)
        .by(9)
        .compute(310, 400, launch=(300, 350))
        .operator(340, 500)
    )
    assert spans(trace.by(TRAINING).step(2000)) == {TRAINING: [(0, 300), (500, 1000)]}
    # Work of one thread does not interrupt the communication of another thread, not even of a thread that launches
    # nothing.
    trace = (
        TraceBuilder(world_size=2)
        .step(0)
        .annotation(0, 1000, COMMUNICATION)
        .compute(310, 400, launch=(300, 350))
        .by(9)
        .operator(340, 500)
    )
    assert spans(trace.by(TRAINING).step(2000)) == {TRAINING: [(0, 1000)]}


@pytest.mark.parametrize(("launch", "around"), [((250, 260), False), ((199, 200), True), ((700, 710), True)])
def test_update_in_host_memory_launches_no_kernels(launch: tuple[int, int], *, around: bool) -> None:
    trace = (
        TraceBuilder(world_size=2)
        .step(0)
        .optimizer(200, 700)
        .annotation(210, 220, COMMUNICATION)
        .compute(720, 730, launch=launch)
    )
    intervals = spans(trace.step(2000))[TRAINING]
    assert intervals == ([(200, 700)] if around else [(210, 220)])
    without = (
        TraceBuilder(world_size=2)
        .step(0)
        .optimizer(200, 700)
        .annotation(210, 220, COMMUNICATION)
        .operator(0, 5)
        .step(2000)
    )
    assert spans(without)[TRAINING] == [(210, 220)]


def test_event_contains_events_that_begin_inside_it_on_the_same_thread() -> None:
    events = TraceBuilder().operator(10, 20).operator(10, 11).operator(20, 30).by(2).operator(15, 16).build().events
    (row,) = np.flatnonzero(events.end_ns == 20_000).tolist()
    others = {int(events.start_ns[at] // 1000): np.array([at]) for at in range(len(events)) if at != row}
    assert [_holds(events, row, others[start]) for start in (10, 20, 15)] == [True, False, False]


def test_launched_within_uses_half_open_spans_of_the_thread() -> None:
    launched = launched_within(
        {1: as_set([(10, 20)]), 2: as_set([(0, 5)])}, np.array([1, 1, 1, 1, 2, 3]), np.array([9, 10, 19, 20, 10, 10])
    )
    assert launched.tolist() == [False, True, True, False, False, False]


def test_copies_belong_to_a_range_on_their_stream() -> None:
    trace = TraceBuilder().copy(0, 10, stream=7, launch=None).copy(20, 30, stream=7, launch=None)
    trace.copy(0, 10, stream=8, launch=None).on(1).copy(0, 10, stream=7, launch=None).on(0)
    trace.compute(0, 15, COMMUNICATION, stream=7, launch=None).compute(0, 99, "another range", stream=8, launch=None)
    events = trace.build().events
    ranges = events.kind == EventKind.KERNEL
    named = np.array([events.name_of(row) == COMMUNICATION for row in range(len(events))])
    kind = np.where(ranges, EventKind.DEVICE_ANNOTATION, events.kind).astype(np.uint8)
    role = np.where(ranges, np.where(named, Role.COMMUNICATION, Role.OTHER), events.role).astype(np.uint8)
    events = replace(events, kind=kind, role=role)
    copies = events.rows_of(EventKind.COPY)
    where = [(int(events.device[row]), int(events.thread[row]), int(events.start_ns[row]) // 1000) for row in copies]
    assert {at for at, beside in zip(where, copies_beside(events, copies).tolist(), strict=True) if beside} == {
        (0, 7, 0)
    }
