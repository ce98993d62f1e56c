"""Test host threads, launches and tracks with a few calls, with values a µs below and above each limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.host import runtime_call_of
from gpudiag.analysis.timeline.rank_events import _top_level, _without
from gpudiag.intervals import as_set
from gpudiag.model.event import HOST, EventKind, Role
from gpudiag.model.timeline import UNKNOWN, OpClass
from tests.timeline_builder import TRAINING, TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpudiag.intervals import Intervals
    from gpudiag.model.event import Trace
    from gpudiag.model.timeline import DeviceTrack, HostThread

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def us(spans: Intervals) -> list[tuple[float, float]]:
    return [(start / 1000, end / 1000) for start, end in spans.pairs()]


def track_of(trace: TraceBuilder) -> DeviceTrack:
    (track,) = build_timeline([trace.build()]).tracks
    return track


def threads_of(trace: TraceBuilder) -> dict[int, HostThread]:
    return track_of(trace).threads


def test_thread_is_busy_during_short_pauses() -> None:
    trace = TraceBuilder().operator(0, 100).runtime(600, 700).operator(1201, 1300).annotation(2000, 3000, "mine")
    (thread,) = threads_of(trace).values()
    assert us(thread.busy) == [(0, 700), (1201, 1300)]


def test_training_threads_work_or_wait_for_data() -> None:
    trace = TraceBuilder().operator(0, 10).by(2).runtime(5, 9).by(3).loader(1, 4).by(4).annotation(0, 50, "mine")
    threads = threads_of(trace)
    assert threads.keys() == {1, 2, 3}
    assert us(threads[3].input) == [(1, 4)]
    assert len(threads[3].busy) == len(threads[1].input) == 0


def test_synchronization_and_waits_for_communication_block() -> None:
    trace = TraceBuilder().operator(0, 10).sync(20, 50).runtime(60, 90, "cudaLaunchKernel").by(2).sync(70, 80)
    threads = threads_of(trace)
    assert us(threads[1].blocked) == [(20, 50)]
    assert us(threads[2].blocked) == [(70, 80)]
    assert us(threads[1].busy) == [(0, 90)]
    # A call of TensorFlow's executor that communicates is a wait rather than work.
    built = TraceBuilder(world_size=2).operator(0, 10).runtime(600, 900, "CollectiveReduceV2").build()
    role = built.events.role.copy()
    role[built.events.kind == EventKind.RUNTIME] = Role.COMMUNICATION
    (track,) = build_timeline([replace(built, events=replace(built.events, role=role))]).tracks
    assert (us(track.threads[1].blocked), us(track.threads[1].busy)) == ([(600, 900)], [(0, 10)])


@pytest.mark.parametrize(
    ("name", "start", "call", "blocked"),
    [
        (PAGEABLE, 39, "cudaMemcpyAsync", True),
        (PAGEABLE, 40, "cudaMemcpyAsync", False),  # the driver defers the copy, which starts after its call returned
        ("Memcpy HtoD (Pinned -> Device)", 39, "cudaMemcpyAsync", False),
        (PAGEABLE, 39, "cudaGraphLaunch", False),
    ],
)
def test_copy_of_pageable_memory_blocks_its_caller(name: str, start: int, call: str, *, blocked: bool) -> None:
    trace = TraceBuilder().operator(0, 5).copy(start, 90, name, launch=(10, 40), call=call)
    assert us(threads_of(trace)[TRAINING].blocked) == ([(10, 40)] if blocked else [])


def test_copy_with_an_unknown_call_blocks_no_thread() -> None:
    trace = TraceBuilder().operator(0, 5).copy(8, 90, PAGEABLE, launch=None).copy(95, 99, PAGEABLE, launch=(92, 97))
    assert us(threads_of(trace)[TRAINING].blocked) == [(92, 97)]


def test_first_call_of_a_correlation_is_the_launch() -> None:
    trace = TraceBuilder().runtime(5, 6, correlation=7).runtime(2, 9, correlation=7).runtime(0, 1, correlation=3)
    trace.runtime(20, 21).graph((30, 31), (40, 50), (50, 60)).compute(70, 80, launch=None).compute(80, 90, launch=33)
    events = trace.build().events
    work = events.rows_of(EventKind.KERNEL)
    calls = runtime_call_of(events, work)
    assert [events.start_ns[call] // 1000 if call != UNKNOWN else None for call in calls] == [30, 30, None, 33]
    ids = replace(events, correlation=np.where(events.kind == EventKind.KERNEL, 7, events.correlation))
    assert {int(events.start_ns[call]) // 1000 for call in runtime_call_of(ids, work)} == {2}
    missing = replace(events, correlation=np.where(events.kind == EventKind.KERNEL, 99, events.correlation))
    assert set(runtime_call_of(missing, work).tolist()) == {UNKNOWN}
    alone = TraceBuilder().compute(0, 5, launch=None).build().events
    assert runtime_call_of(alone, np.array([0])).tolist() == [UNKNOWN]


def test_ops_have_the_step_and_the_call_that_launched_them() -> None:
    trace = TraceBuilder()
    trace.compute(5, 9, launch=3).step(10).compute(0, 5, launch=(0, 2)).by(9).compute(6, 8, launch=(5, 7))
    trace.step(20).copy(0, 4, launch=1).memset(4, 5).compute(5, 6, launch=None).step(30).compute(0, 1)
    ops = track_of(trace).ops
    assert ops.step.tolist() == [-1, 0, 0, 1, 1, UNKNOWN, 2]
    assert (ops.launch_start / 1000).tolist() == [3, 10, 15, 21, 20, UNKNOWN / 1000, 30]
    assert (ops.launch_end / 1000).tolist() == [3, 12, 17, 21, 20, UNKNOWN / 1000, 30]
    assert ops.launch_thread.tolist() == [1, 1, 9, 9, 9, UNKNOWN, 9]
    compute, copy = OpClass.COMPUTE, OpClass.COPY
    assert ops.op_class.tolist() == [compute, compute, compute, copy, copy, compute, compute]


def test_times_are_on_the_common_clock() -> None:
    traces = [
        TraceBuilder(rank, origin_ns=10**18 + 5000 * rank)
        .operator(0, 2)
        .steps(4, 100, lambda trace: trace.compute(7, 90, launch=(1, 3)))
        for rank in range(2)
    ]
    for track in build_timeline([trace.overhead(4, 6).build() for trace in traces]).tracks:
        shift = 5 * track.rank
        assert track.shift_ns == 1000 * shift
        assert track.ops.start[0] == (7 + shift) * 1000
        assert (track.ops.launch_start[0], track.ops.launch_end[0]) == ((1 + shift) * 1000, (3 + shift) * 1000)
        assert track.steps.start[0] == shift * 1000
        assert track.steps.end == (306 + shift) * 1000
        assert us(track.overhead) == [(304 + shift, 306 + shift)]
        assert us(track.threads[1].busy)[0][0] == shift


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([(0, 10, 1), (2, 8, 1), (10, 12, 1)], [0, 2]),
        ([(0, 10, 1), (2, 8, 2), (3, 4, 2), (9, 15, 1)], [0, 1]),
        ([(0, 10, 1), (0, 5, 1), (5, 20, 1), (12, 13, 1), (20, 21, 1)], [0, 4]),
        ([], []),
    ],
)
def test_top_level_operators_are_not_nested(spans: list[tuple[int, int, int]], kept: list[int]) -> None:
    start, end, thread = np.array(spans, np.int64).reshape(-1, 3).T
    assert _top_level(np.arange(len(spans)), start, end, thread).tolist() == kept


def test_cutting_intervals_splits_operators() -> None:
    rows, start, end = _without(
        np.array([5, 7, 9]), np.array([0, 10, 30]), np.array([10, 25, 40]), as_set([(4, 6), (12, 35)])
    )
    assert list(zip(rows.tolist(), start.tolist(), end.tolist(), strict=True)) == [
        (5, 0, 4), (5, 6, 10), (7, 10, 12), (9, 35, 40)
    ]  # fmt: skip


def test_training_thread_operators_replace_device_work() -> None:
    """Nested operators, other threads, collectives and the loader's operators do not count."""
    trace = TraceBuilder(world_size=2)
    for step in range(4):
        trace.step(1000 * step).loader(0, 100).operator(0, 40, "collate").operator(60, 90, "pin")
        trace.operator(100, 500, "mm").operator(200, 300, "inner").operator(510, 520, "c10d::allreduce_")
        trace.by(2).operator(600, 700, "beside").by(TRAINING)
    track = track_of(trace)
    names = [build_timeline([trace.build()]).traces[0].events.name_of(int(row)) for row in track.ops.row]
    assert names == ["mm", "c10d::allreduce_"] * 4
    assert track.ops.op_class.tolist() == [OpClass.COMPUTE, OpClass.COMMUNICATION] * 4
    assert track.ops.step.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(track.ops.stream.tolist()) == set(track.ops.launch_start.tolist()) == {UNKNOWN}
    assert set(track.ops.launch_thread.tolist()) == {TRAINING}
    assert (track.is_cpu, track.device_name) == (True, "")


def of_ranks(*ranks: int | None) -> tuple[list[int], list[str]]:
    """Return the ranks that traces with `ranks` (None: unknown) get, and the notes about them."""
    traces = [
        replace(TraceBuilder(rank).steps(4, 100, lambda trace: trace.compute(0, 90)).build(), source=f"{place}.json")
        for place, rank in enumerate(ranks)
    ]
    timeline = build_timeline(traces)
    return [track.rank for track in timeline.tracks], [note for trace in timeline.traces for note in trace.notes]


def test_trace_without_a_rank_gets_the_first_free_rank() -> None:
    assert of_ranks(0, 1) == ([0, 1], [])
    assert of_ranks(None, 0, None)[0] == [0, 1, 2]
    assert of_ranks(None, 2, 0, None)[0] == [0, 1, 2, 3]
    assert of_ranks(7, None) == ([0, 7], ["1.json: neither the trace nor its name says its rank; taken as rank 0"])


def test_world_size_is_stated_or_follows_from_ranks() -> None:
    def world(*traces: Trace, told: int | None = None) -> int:
        return build_timeline(traces, told).world_size

    def trace(rank: int, world_size: int | None = None) -> Trace:
        return TraceBuilder(rank, world_size=world_size).operator(0, 5).build()

    assert world(trace(0), trace(2)) == 3
    assert world(trace(0, 4), trace(2)) == 4
    assert world(trace(0, 2), trace(3)) == 4
    assert world(trace(0, 2), told=8) == 8


def test_host_is_the_track_if_no_device_has_work() -> None:
    def devices(build: Callable[[TraceBuilder], TraceBuilder]) -> list[int]:
        return [track.device for track in build_timeline([build(TraceBuilder()).build()]).tracks]

    assert devices(lambda one: one.operator(0, 5).on(1).compute(0, 9).on(0).copy(0, 9)) == [0, 1]
    assert devices(lambda one: one.operator(0, 5)) == [HOST]
    assert devices(lambda one: one.annotation(0, 5, "mine")) == []


def test_host_collectives_belong_to_the_first_track() -> None:
    trace = TraceBuilder().steps(
        4, 100, lambda trace: trace.gloo(60, 70).on(0).compute(0, 9).on(1).compute(0, 9).collective(20, 30)
    )
    first, second = build_timeline([trace.build()]).tracks
    assert [kind[0] for kind in first.collectives.kinds] == ["all_reduce"]
    assert (first.collectives.start[0], second.collectives.start[0]) == (60_000, 20_000)
    assert (len(first.collectives), len(second.collectives)) == (4, 4)


def test_time_is_linear_in_threads() -> None:
    """A search of all events for each thread would take 10 billion comparisons."""
    threads = 50_000
    thread = np.tile(np.arange(threads), 4)
    start = np.arange(len(thread), dtype=np.int64)
    begun = time.process_time()
    assert len(_top_level(np.arange(len(thread)), start, start + 1, thread)) == len(thread)
    assert time.process_time() - begun < 30
