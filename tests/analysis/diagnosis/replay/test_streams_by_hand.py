"""Which ops of a few streams wait for which, where no trace tells: a µs below and above. Times in µs."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.replay.graph import NONE
from gpudiag.analysis.diagnosis.replay.streams import Given, LaneOps, body_ops, find_waits
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.timeline import UNKNOWN
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

Op = tuple[float, float, float]
"""When it was launched (UNKNOWN: that is not known), began and ended."""


def ops_of(*streams: Sequence[Op]) -> LaneOps:
    """Ops of these streams, none before them."""
    ops = np.array([op for stream in streams for op in stream], np.float64) * 1000
    launched = np.where(ops[:, 0] < 0, UNKNOWN, ops[:, 0]).astype(np.int64)
    edges = np.cumsum([0, *map(len, streams)]).tolist()
    spans = list(pairwise(edges))
    none = np.full(len(ops), NONE, np.int64)
    given = [
        Given(
            stream=number,
            end=ops[a:b, 2],
            launch_time=np.maximum.accumulate(launched[a:b]),
            op=np.arange(a, b),
        )
        for number, (a, b) in enumerate(spans)
    ]
    return LaneOps(
        lane=0,
        trace=0,
        start=ops[:, 1],
        end=ops[:, 2],
        op_class=np.zeros(len(ops), np.uint8),
        host_copy=np.zeros(len(ops), np.bool_),
        row=np.arange(len(ops)),
        step=np.zeros(len(ops), np.int64),
        order=np.arange(len(ops)),
        launch_time=launched,
        launch_thread=np.ones(len(ops), np.int64),
        before_end=np.concatenate([[-np.inf, *ops[a : b - 1, 2]] for a, b in spans]),
        wait_a=none.copy(),
        wait_b=none.copy(),
        waited_end=np.full(len(ops), -np.inf),
        given=given,
        streams=spans,
        launch=none.copy(),
    )


def waits(ops: LaneOps, *calls: float) -> dict[int, list[int]]:
    """For what each op waits, after calls that make a stream wait at these times."""
    find_waits(ops, (np.array(calls) * 1000).astype(np.int64))
    pairs = zip(ops.wait_a.tolist(), ops.wait_b.tolist(), strict=True)
    return {op: [one for one in pair if one != NONE] for op, pair in enumerate(pairs) if pair != (NONE, NONE)}


@pytest.mark.parametrize(
    ("call", "start", "waited"),
    [
        (20, 500, 1),  # for what was launched there before the call,
        (11, 500, 1),
        (10, 500, None),  # a call before the launch of another op is that one's
        (20, 400, 1),  # of that the last that had ended
        (20, 399, 0),
        (20, 200, 0),
        (20, 199, None),
        (30, 500, 1),
        (31, 500, None),
    ],
)
def test_a_wait_call_is_for_the_next_launch_and_what_was_launched_before(
    call: float, start: float, waited: int | None
) -> None:
    ops = ops_of([(0, 100, 200), (10, 200, 400)], [(30, start, 600)])
    assert waits(ops, call) == ({} if waited is None else {2: [waited]})
    ended = -np.inf if waited is None else (200_000, 400_000)[waited]
    assert ops.waited_end.tolist() == [-np.inf, -np.inf, ended]


def test_calls_are_for_the_next_of_all_streams_whose_launch_is_known() -> None:
    assert waits(ops_of([(0, 100, 200), (40, 300, 400)], [(UNKNOWN, 220, 250), (30, 260, 600)]), 20) == {3: [0]}
    assert waits(ops_of([(0, 100, 200), (25, 300, 400)], [(30, 300, 600)]), 20) == {}
    # One stream alone waits for nothing.
    assert waits(ops_of([(0, 100, 200), (25, 300, 400)]), 20) == {}


def test_an_op_may_wait_for_two_streams_and_the_later_counts() -> None:
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
        (50, 10, 210.001, False),  # not right at its end
        (50, 10, 199.999, False),
        (190, 10, 200, True),
        (190.001, 10, 200, False),  # its own stream was busy nearly until then
        (50, 179.999, 200, True),
        (50, 180, 200, False),  # it may have begun at once when it was launched
        (50, 5.001, 200, True),
        (50, 5, 200, False),  # the other was launched no earlier
        (50, UNKNOWN, 200, False),
    ],
)
def test_an_op_that_begins_right_at_anothers_end_waited_for_it(
    before: float, launched: float, start: float, *, waited: bool
) -> None:
    ops = ops_of([(0, 20, 40), (5, 100, 200)], [(1, 30, before), (launched, start, 300)])
    assert waits(ops) == ({3: [1]} if waited else {})


def test_ops_of_the_analysed_steps_are_taken_with_what_ran_between_them() -> None:
    """Steps 1 to 3 are analysed: of steps 0 and 4 and of unknown launches before and after nothing is."""
    trace = TraceBuilder().compute(-30, -20, launch=None)
    for step in range(5):
        trace.step(100 * step).compute(10, 40).compute(50, 60, launch=None).compute(70, 75, stream=9)
        trace.compute(80, 85, stream=11, launch=None)
    (lane,) = build_timeline([trace.build()]).lanes
    ops = body_ops(lane, 3)
    assert (ops.lane, ops.streams) == (3, [(0, 5), (5, 8)])
    assert (ops.start / 1000).tolist() == [110, 150, 210, 250, 310, 170, 270, 370]
    assert ops.step.tolist() == [0, 0, 1, 1, 2, 0, 1, 2]
    assert (ops.before_end / 1000).tolist() == [60, 140, 160, 240, 260, 75, 175, 275]
    assert lane.ops.start[ops.order].tolist() == ops.start.tolist()
    assert ops.launch_time.tolist() == [100_000, UNKNOWN, 200_000, UNKNOWN, 300_000, 100_000, 200_000, 300_000]


def test_what_was_given_before_the_body_stands_for_what_lies_as_far_before_its_end() -> None:
    trace = TraceBuilder().compute(0, 5, launch=None)
    for step in range(5):
        trace.step(100 * step + 100).compute(10, 40).compute(50, 60).compute(70, 75, stream=9)
    (lane,) = build_timeline([trace.build()]).lanes
    seven, nine = body_ops(lane, 0).given
    assert (seven.stream, nine.stream) == (7, 9)
    assert seven.op.tolist() == [3, 4, 5, 0, 1, 2, 3, 4, 5]
    assert (seven.end / 1000).tolist() == [5, 140, 160, 240, 260, 340, 360, 440, 460]
    assert seven.launch_time.tolist() == [UNKNOWN, *np.repeat([100_000, 200_000, 300_000, 400_000], 2)]
    assert nine.op.tolist() == [8, 6, 7, 8]
    assert (nine.end / 1000).tolist() == [175, 275, 375, 475]
