"""Test inferred waits between streams, with a value one µs below and above each limit. Times in µs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.analysis.diagnosis.simulation.streams import (
    AwaitedOps,
    StreamHistory,
    TracedWaits,
    TrackOps,
    analysed_ops,
    apply_traced_waits,
    infer_waits,
    traced_waits,
)
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.event import NO_NUMBER, EventWaits
from gpudiag.model.timeline import UNKNOWN
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

Op = tuple[float, float, float]
"""Times of an op's launch (UNKNOWN if it was not recorded), start and end."""


def ops_of(*streams: Sequence[Op]) -> TrackOps:
    """Make the ops of `streams`, without ops of earlier iterations."""
    ops = np.array([op for stream in streams for op in stream], np.float64) * 1000
    launched = np.where(ops[:, 0] < 0, UNKNOWN, ops[:, 0]).astype(np.int64)
    edges = np.cumsum([0, *map(len, streams)]).tolist()
    spans = list(pairwise(edges))
    histories = [
        StreamHistory(
            stream=number,
            end=ops[a:b, 2],
            launch_time=np.maximum.accumulate(launched[a:b]),
            op=np.arange(a, b),
        )
        for number, (a, b) in enumerate(spans)
    ]
    return TrackOps(
        track=0,
        trace=0,
        start=ops[:, 1],
        end=ops[:, 2],
        op_class=np.zeros(len(ops), np.uint8),
        row=np.arange(len(ops)),
        step=np.zeros(len(ops), np.int64),
        launch_time=launched,
        launch_thread=np.ones(len(ops), np.int64),
        before_end=np.concatenate([[-np.inf, *ops[a : b - 1, 2]] for a, b in spans]),
        histories=histories,
        streams=spans,
    )


def waits(ops: TrackOps, *calls: float) -> dict[int, list[int]]:
    """Return op → ops that it waits for, after stream-wait calls at the times `calls`."""
    infer_waits(ops, (np.array(calls) * 1000).astype(np.int64))
    pairs = zip(ops.wait_a.tolist(), ops.wait_b.tolist(), strict=True)
    return {
        op: [awaited for awaited in pair if awaited != NONE] for op, pair in enumerate(pairs) if pair != (NONE, NONE)
    }


@pytest.mark.parametrize(
    ("call", "start", "waited"),
    [
        (20, 500, 1),  # waits for an op launched before the call
        (11, 500, 1),
        (10, 500, None),  # op 1 is launched after the call, so the call belongs to op 1
        (20, 400, 1),  # op 1 ended exactly at the start
        (20, 399, 0),
        (20, 200, 0),
        (20, 199, None),
        (30, 500, 1),
        (31, 500, None),
    ],
)
def test_wait_call_joins_next_launch_to_earlier_launches(call: float, start: float, waited: int | None) -> None:
    ops = ops_of([(0, 100, 200), (10, 200, 400)], [(30, start, 600)])
    assert waits(ops, call) == ({} if waited is None else {2: [waited]})
    ended = -np.inf if waited is None else (200_000, 400_000)[waited]
    assert ops.waited_end.tolist() == [-np.inf, -np.inf, ended]


def test_wait_call_joins_next_known_launch_of_any_stream() -> None:
    assert waits(ops_of([(0, 100, 200), (40, 300, 400)], [(UNKNOWN, 220, 250), (30, 260, 600)]), 20) == {3: [0]}
    assert waits(ops_of([(0, 100, 200), (25, 300, 400)], [(30, 300, 600)]), 20) == {}
    # A single stream has no waits.
    assert waits(ops_of([(0, 100, 200), (25, 300, 400)]), 20) == {}


def test_op_waiting_for_two_streams_starts_after_the_later_end() -> None:
    ops = ops_of([(0, 100, 200)], [(50, 500, 600)], [(10, 120, 300)])
    assert waits(ops, 20) == {1: [0, 2]}
    assert ops.waited_end[1] == 300_000
    ops = ops_of([(0, 100, 300)], [(50, 500, 600)], [(10, 120, 200)])
    assert waits(ops, 20) == {1: [0, 2]}
    assert ops.waited_end[1] == 300_000


@pytest.mark.parametrize(
    ("before", "launched", "start", "waited"),
    [
        (50, 10, 200, True),
        (50, 10, 210, True),
        (50, 10, 210.001, False),  # starts too long after the end of the other stream's op
        (50, 10, 199.999, False),
        (190, 10, 200, True),
        (190.001, 10, 200, False),  # the previous op of the stream ended almost at the start
        (50, 179.999, 200, True),
        (50, 180, 200, False),  # the op may have started immediately after its launch
        (50, 5, 200, True),  # launched by the same call, in one CUDA graph
        (50, 4.999, 200, False),  # the other stream's op was launched later
        (50, UNKNOWN, 200, False),
    ],
)
def test_op_that_starts_at_the_end_of_an_op_waited_for_it(
    before: float, launched: float, start: float, *, waited: bool
) -> None:
    ops = ops_of([(0, 20, 40), (5, 100, 200)], [(1, 30, before), (launched, start, 300)])
    assert waits(ops) == ({3: [1]} if waited else {})


def test_analysed_ops_include_unlaunched_ops_between_them() -> None:
    """The analysed ops belong to steps 1 to 3.

    Ops of steps 0 and 4, and adjacent ops with unknown launch, are excluded.
    """
    trace = TraceBuilder().compute(-30, -20, launch=None)
    for step in range(5):
        trace.step(100 * step).compute(10, 40).compute(50, 60, launch=None).compute(70, 75, stream=9)
        trace.compute(80, 85, stream=11, launch=None)
    (track,) = build_timeline([trace.build()]).tracks
    ops = analysed_ops(track, 3)
    assert (ops.track, ops.streams) == (3, [(0, 5), (5, 8)])
    assert (ops.start / 1000).tolist() == [110, 150, 210, 250, 310, 170, 270, 370]
    assert ops.step.tolist() == [0, 0, 1, 1, 2, 0, 1, 2]
    assert (ops.before_end / 1000).tolist() == [60, 140, 160, 240, 260, 75, 175, 275]
    assert ops.launch_time.tolist() == [100_000, UNKNOWN, 200_000, UNKNOWN, 300_000, 100_000, 200_000, 300_000]


def test_first_op_of_a_stream_has_no_previous_end() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(100 * step).compute(10, 40)
        if step:
            trace.compute(50, 60, stream=9)
    (track,) = build_timeline([trace.build()]).tracks
    ops = analysed_ops(track, 0)
    assert ops.before_end[3:].tolist() == [-np.inf, 160_000, 260_000]
    assert ops.histories[1].op.tolist() == [3, 4, 5]


def test_history_begins_with_the_last_ops_of_the_iteration() -> None:
    trace = TraceBuilder().compute(0, 5, launch=None)
    for step in range(5):
        trace.step(100 * step + 100).compute(10, 40).compute(50, 60).compute(70, 75, stream=9)
    (track,) = build_timeline([trace.build()]).tracks
    seven, nine = analysed_ops(track, 0).histories
    assert (seven.stream, nine.stream) == (7, 9)
    assert seven.op.tolist() == [3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert (seven.end / 1000).tolist() == [5, 140, 160, 240, 260, 340, 360, 440, 460]
    assert seven.launch_time.tolist() == [UNKNOWN, *np.repeat([100_000, 200_000, 300_000, 400_000], 2)]
    assert nine.op.tolist() == [8, 6, 7, 8]
    assert (nine.end / 1000).tolist() == [175, 275, 375, 475]


def known(
    *waits: tuple[float, int, float], index: Sequence[tuple[int, int, int]], ops: TrackOps
) -> dict[int, list[int]]:
    """Return op → ops that it waits for; `waits` are (time of the call, stream, time of the event record).

    `index` names the op of each wait: (wait, stream, position of the op on the stream).
    """
    called, stream, recorded = np.array(waits, np.float64).T
    rows = np.arange(len(waits))
    of = TracedWaits(
        call=rows,
        called=(called * 1000).astype(np.int64),
        stream=stream.astype(np.int64),
        recorded=np.where(recorded < 0, UNKNOWN, recorded * 1000).astype(np.int64),
        recorded_stream=np.zeros(len(waits), np.int64),
    )
    wait, given, which = np.array(index, np.int64).T
    apply_traced_waits(ops, of, AwaitedOps(wait, rows[wait], given, which))
    pairs = zip(ops.wait_a.tolist(), ops.wait_b.tolist(), strict=True)
    return {
        op: [awaited for awaited in pair if awaited != NONE] for op, pair in enumerate(pairs) if pair != (NONE, NONE)
    }


@pytest.mark.parametrize(
    ("called", "recorded", "start", "waited"),
    [
        (20, 15, 500, [1]),
        (30, 15, 500, [1]),
        (31, 15, 500, None),  # no op is launched on the stream after the call
        (20, 15, 399, [1]),  # the end of op 1 may be recorded a microsecond late
        (20, 15, 398.9, [0]),
        (20, UNKNOWN, 399, [0]),
        (20, UNKNOWN, 400, [1]),
        (20, 15, 150, None),
    ],
)
def test_next_op_of_a_waiting_stream_waits_for_ended_ops(
    called: float, recorded: float, start: float, waited: list[int] | None
) -> None:
    ops = ops_of([(0, 100, 200), (10, 200, 400)], [(30, start, 600)])
    assert known((called, 1, recorded), index=[(0, 0, 1)], ops=ops) == ({} if waited is None else {2: waited})
    assert ops.waited_end[2] == (-np.inf if waited is None else (200_000, 400_000)[waited[0]])


def test_op_waits_for_the_two_awaited_ops_that_ended_last() -> None:
    streams = [(0, 100, 200)], [(1, 100, 300)], [(2, 100, 250), (3, 250, 280)], [(50, 500, 600)]
    every = [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert known((20, 3, 15), index=every, ops=ops_of(*streams)) == {4: [1, 2]}
    ops = ops_of(*streams)
    assert known((20, 3, 15), (21, 3, 16), index=[*every, (1, 2, 1)], ops=ops) == {4: [1, 3]}
    assert ops.waited_end[4] == 300_000
    assert known((20, 3, 15), index=[(0, 2, 0)], ops=ops_of(*streams)) == {4: [2]}


def test_op_waits_for_events_since_the_previous_op() -> None:
    ops = ops_of([(0, 100, 200), (10, 200, 400)], [(30, 450, 500), (60, 500, 600)])
    assert known((20, 1, 5), (40, 1, 15), index=[(0, 0, 0), (1, 0, 1)], ops=ops) == {2: [0], 3: [1]}


def traced(*waits: tuple[int, int, int, int, int], shift: int = 0) -> list[tuple[float, int, float, int]] | None:
    """Return the traced waits of device 0 as (call in µs, waiting stream, record in µs, recorded stream).

    `waits` are (row of call, row of record, waiting stream, recorded stream, device). Rows 0 to 3 are calls at 0, 10,
    20 and 30 µs. Row 1 launches on stream 7, and row 2 on stream 9 from thread 5.
    """
    trace = TraceBuilder().runtime(0, 1).compute(40, 50, launch=10).by(5).compute(40, 60, stream=9, launch=20)
    built = trace.by(1).runtime(30, 31).build()
    calls = np.flatnonzero(built.events.device == -1)
    columns = np.array(waits, np.int64).reshape(-1, 5).T
    row = np.where(columns[:2] >= 0, calls[columns[:2]], NO_NUMBER)
    events = EventWaits(call=row[0], record=row[1], stream=columns[2], recorded_stream=columns[3], device=columns[4])
    (track,) = build_timeline([built]).tracks
    found = traced_waits(replace(built, event_waits=events), replace(track, shift_ns=1000 * shift))
    if found is None:
        return None
    columns_found = (found.called / 1000, found.stream, found.recorded / 1000, found.recorded_stream)
    return list(zip(*(column.tolist() for column in columns_found), strict=True))


def test_traced_waits_are_of_this_device_or_the_host() -> None:
    none = NO_NUMBER
    assert traced() is None
    assert traced((3, 1, 7, 9, 0)) == [(30, 7, 10, 9)]
    assert traced((3, 1, 7, 9, 0), shift=5) == [(35, 7, 15, 9)]
    assert traced((3, 1, 7, 9, 1)) == []
    assert traced((3, 1, none, 9, 1)) == [(30, none, 10, 9)]
    assert traced((3, none, 7, 9, 0)) == [(30, 7, UNKNOWN / 1000, 9)]


def test_record_without_stream_is_in_the_stream_of_its_threads_last_launch() -> None:
    """Thread 1 launched on stream 7 at 10 µs, and thread 5 on stream 9 at 20 µs."""
    none = NO_NUMBER
    assert traced((3, 3, 9, none, 0)) == [(30, 9, 30, 7)]
    assert traced((3, 3, 7, none, 0)) == [(30, 7, 30, none)]  # stream 7 itself waits, so it is not the recorded stream
    assert traced((3, 1, 9, none, 0)) == [(30, 9, 10, none)]  # the thread's last launch is not before the record
    assert traced((3, 2, 7, none, 0)) == [(30, 7, 20, none)]
    assert traced((3, none, 9, none, 0)) == [(30, 9, UNKNOWN / 1000, none)]


@pytest.mark.parametrize(
    ("same_launch", "within_graphs", "waited"), [(True, True, [0]), (True, False, [0]), (False, True, None)]
)
def test_op_of_a_graph_waits_for_an_op_of_another_stream_in_the_same_graph(
    same_launch: bool, within_graphs: bool, waited: list[int] | None
) -> None:
    other = 10 if same_launch else 9
    ops = ops_of([(other, 100, 500)], [(10, 100, 200), (10, 505, 600)])
    infer_waits(ops, np.empty(0, np.int64), within_graphs=within_graphs)
    assert ([ops.wait_a[2]] if ops.wait_a[2] != NONE else None) == waited
