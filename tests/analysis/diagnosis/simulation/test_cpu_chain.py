"""Test host chains of CPU processes: for which collective the training thread waits in a pause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.cpu_chain import _attach_enqueues, _waits, collective_ops
from gpudiag.analysis.diagnosis.simulation.graph import NONE
from gpudiag.analysis.timeline import build_timeline
from gpudiag.intervals import as_set
from gpudiag.model.analysis import BUCKETS
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

PERIOD = 100_000


def two_ranks(recorded_late: int) -> list[TraceBuilder]:
    """Make 6 steps of 100 ms. Each has 38 ms of compute, and then two all-reduces, of which the first takes 2 ms.

    The training thread resumes at the end of the second all-reduce, whose thread records the end `recorded_late` µs
    later.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * PERIOD)
            trace.operator(1_000, 38_000, "aten::convolution_backward")
            trace.operator(38_100, 38_300, "c10d::allreduce_").operator(38_400, 38_600, "c10d::allreduce_")
            trace.gloo(38_200, 40_300, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.gloo(38_500, 98_500 + recorded_late, thread=92, ranks=(0, 1), size_bytes=900)
            trace.operator(98_520, 99_900, "aten::copy_")
    return ranks


@pytest.mark.parametrize("recorded_late", [-10, 900])
def test_pause_waits_for_collective_with_nearest_end(recorded_late: int) -> None:
    traces = [trace.build() for trace in two_ranks(recorded_late)]
    what_if = case_of(traces).what_if
    assert what_if is not None
    assert what_if.simulated_ms == pytest.approx(100, rel=0.01)
    found, _ = diagnosis_of(traces)
    assert found["communication-bound"].recoverable_ms_per_step == pytest.approx(60, rel=0.02)


def tensor_parallel(*, beside: bool = False) -> list[TraceBuilder]:
    """Make 6 steps of 40 ms.

    Each step has twice a matrix product of 9 ms, and an autograd function of 10 ms that sums the product over ranks.
    With `beside` the function also computes during the sum.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * 40_000)
            for begin in (1_000, 21_000):
                trace.operator(begin, begin + 9_000, "aten::mm")
                trace.operator(begin + 9_050, begin + 19_050, "_Summed")
                trace.operator(begin + 9_060, begin + 9_090, "aten::clone")
                trace.operator(begin + 9_100, begin + 9_150, "c10d::allreduce_")
                if beside:
                    trace.operator(begin + 9_160, begin + 19_040, "aten::mm")
                trace.gloo(begin + 9_200, begin + 19_000, thread=91, ranks=(0, 1))
    return ranks


def test_waiting_inside_an_operator_is_communication() -> None:
    traces = [trace.build() for trace in tensor_parallel()]
    case = case_of(traces)
    for track in case.attribution.tracks:
        table = dict(zip(BUCKETS, track.buckets_ns.mean(axis=0) / 1e6, strict=True))
        assert table["communication_transfer"] == pytest.approx(2 * 9.85, rel=0.02)
        assert table["compute"] == pytest.approx(2 * 9.2, rel=0.02)
    what_if = case.what_if
    assert what_if is not None
    assert what_if.simulated_ms == pytest.approx(40, rel=0.01)
    found, _ = diagnosis_of(traces)
    assert next(iter(found)) == "communication-bound"
    assert found["communication-bound"].recoverable_ms_per_step == pytest.approx(2 * 9.8, rel=0.05)


def test_operator_that_computes_beside_its_collective_does_not_wait() -> None:
    traces = [trace.build() for trace in tensor_parallel(beside=True)]
    for track in case_of(traces).attribution.tracks:
        table = dict(zip(BUCKETS, track.buckets_ns.mean(axis=0) / 1e6, strict=True))
        assert table["communication_transfer"] == pytest.approx(0, abs=0.1)
    assert "communication-bound" not in diagnosis_of(traces)[0]


def test_hook_that_enqueues_and_returns_does_not_wait() -> None:
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * PERIOD)
            # The thread loses its CPU core for a while; the collective continues during the next operators.
            trace.operator(1_000, 2_000, "torch::autograd::AccumulateGrad").operator(1_100, 1_200, "c10d::allreduce_")
            trace.operator(2_000, 99_900, "aten::convolution_backward").gloo(1_150, 60_000, thread=91, ranks=(0, 1))
    (track, _) = case_of([trace.build() for trace in ranks]).attribution.tracks
    assert track.buckets_ns[:, BUCKETS.index("communication_transfer")].max() == 0


@pytest.mark.parametrize("recorded_late", [0, 3_000])
def test_pause_without_a_collective_end_waits_for_running_collective(recorded_late: int) -> None:
    """Rank 1 fetches for 50 ms; rank 0's thread resumes when the all-reduce ends, which is recorded later."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace, fetched in zip(ranks, (0, 50_000), strict=True):
        for step in range(6):
            trace.step(step * PERIOD)
            if fetched:
                trace.loader(0, fetched)
            trace.operator(fetched + 100, fetched + 20_000, "aten::convolution_backward")
            trace.operator(fetched + 20_100, fetched + 20_300, "c10d::allreduce_")
            trace.gloo(fetched + 20_200, 90_000 + recorded_late, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(90_020, 99_900, "aten::copy_")
    found, _ = diagnosis_of([trace.build() for trace in ranks])
    assert found["straggler"].ranks == (1,)
    assert found["straggler"].cause == "input"
    assert found["straggler"].recoverable_ms_per_step == pytest.approx(50, rel=0.1)


def test_pause_whose_collective_ended_at_its_start_is_no_wait() -> None:
    """Both ranks log for 40 ms after an all-reduce of 2 ms, and call nothing of the framework in the meantime."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * PERIOD)
            trace.operator(1_000, 48_000, "aten::convolution_backward")
            trace.operator(48_100, 48_300, "c10d::allreduce_")
            trace.gloo(48_200, 50_300, thread=91, ranks=(0, 1), size_bytes=4_000)
            trace.operator(90_300, 99_900, "aten::copy_")
    found, _ = diagnosis_of([trace.build() for trace in ranks])
    assert next(iter(found)) == "host-stall"
    assert found["host-stall"].recoverable_ms_per_step == pytest.approx(40, rel=0.05)
    assert "before aten::copy_" in found["host-stall"].place
    assert found["communication-bound"].recoverable_ms_per_step == pytest.approx(2, rel=0.1)


def part_of(*collectives: tuple[int, int]) -> Any:
    """Make collectives with (start, end) times in µs."""
    start, end = np.array(collectives, np.float64).reshape(-1, 2).T * 1000
    return SimpleNamespace(start=start, end=end, launch=np.full(len(start), NONE, np.int64))


def pauses(
    operators: Sequence[tuple[int, int]],
    collectives: Sequence[tuple[int, int]],
    *,
    marks: Sequence[int] = (),
    awaited: Sequence[tuple[int, int]] = (),
) -> list[tuple[float, float, int]]:
    """Return (start in µs, end in µs, index of the collective) of each wait.

    `operators`, `collectives` and `awaited` (waits inside operators) are (start, end) in µs; `marks` are the times of
    step marks in µs.
    """
    start, end = np.array(operators, np.int64).T * 1000
    waits = _waits(
        start,
        end,
        np.array(marks, np.int64) * 1000,
        part_of(*collectives),
        as_set([(begin * 1000, stop * 1000) for begin, stop in awaited]),
    )
    begin, stop, op = (column.tolist() for column in waits)
    return [(a / 1000, b / 1000, which) for a, b, which in zip(begin, stop, op, strict=True)]


OPERATORS = ((0, 100), (200, 300))


def test_pause_is_a_wait_from_30_microseconds_and_not_across_a_mark() -> None:
    assert pauses(OPERATORS, [(50, 180)]) == [(100, 200, 0)]
    assert pauses([(0, 100), (130, 200)], [(50, 120)]) == [(100, 130, 0)]
    assert pauses([(0, 100), (129, 200)], [(50, 120)]) == []
    assert pauses(OPERATORS, [(50, 180)], marks=[99, 200]) == [(100, 200, 0)]
    assert pauses(OPERATORS, [(50, 180)], marks=[100]) == []
    assert pauses(OPERATORS, [(50, 180)], marks=[199]) == []
    assert pauses(OPERATORS, []) == []
    # A wait inside an operator counts as well.
    assert pauses([(0, 1000)], [(150, 880)], awaited=[(200, 900)]) == [(200, 900, 0)]


def test_collective_with_nearer_end_ended_the_pause() -> None:
    assert pauses(OPERATORS, [(50, 110), (60, 289)]) == [(100, 200, 1)]
    assert pauses(OPERATORS, [(50, 110), (60, 290)]) == [(100, 200, 0)]
    assert pauses(OPERATORS, [(60, 289), (50, 110)]) == [(100, 200, 0)]
    # A collective that begins after the wait has begun does not cause the wait.
    assert pauses(OPERATORS, [(50, 110), (200, 210)]) == [(100, 200, 0)]
    assert pauses(OPERATORS, [(50, 110), (60, 150), (199, 210)]) == [(100, 200, 2)]
    assert pauses(OPERATORS, [(50, 201)]) == [(100, 200, 0)]


@pytest.mark.parametrize(
    ("collective", "found"),
    [
        ((150, 250), [(100, 200, 1)]),
        ((149, 251), [(100, 200, 1)]),
        ((151, 251), []),
        ((0, 200), [(100, 200, 1)]),
        ((0, 202), []),  # the thread paused for less than half of the collective
        ((200, 210), []),
    ],
)
def test_pause_without_an_end_waits_for_collective_mostly_inside_it(
    collective: tuple[int, int], found: list[tuple[float, float, int]]
) -> None:
    """The first collective ended when the pause began, so the pause waits for the second collective."""
    assert pauses(OPERATORS, [(50, 100), collective]) == found


@pytest.mark.parametrize(
    ("pause", "ended", "until"),
    [(1000, 599, 599), (1000, 600, 1100), (900, 500, 500), (900, 501, 1000), (3000, 1700, 3100), (3000, 1599, 1599)],
)
def test_time_long_after_the_collective_ended_is_untraced(pause: int, ended: int, until: int) -> None:
    """Time after the end of the collective is untraced if it exceeds half a millisecond and half of the pause."""
    assert pauses([(0, 100), (100 + pause, 9000)], [(50, ended)]) == [(100, until, 0)]


@pytest.mark.parametrize(
    ("starts", "launches"),
    [
        ((10, 15, 25), (5, NONE, 7)),
        ((25, 10, 15), (7, 5, NONE)),
        ((9, 20), (NONE, 5)),
        ((20, 21, 22), (5, 7, NONE)),
    ],
)
def test_collectives_are_enqueued_in_order_before_they_start(
    starts: tuple[int, ...], launches: tuple[int, ...]
) -> None:
    part = part_of(*((start, start + 1) for start in starts))
    _attach_enqueues(part, np.array([10_000, 20_000]), np.array([5, 7]))
    assert tuple(part.launch.tolist()) == launches


def test_overlapping_collectives_get_separate_streams() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(step * 1000).operator(0, 900)
        trace.gloo(100, 300, thread=91).gloo(200, 500, thread=92).gloo(300, 400, thread=91).gloo(450, 600, thread=91)
    (track,) = build_timeline([trace.build()]).tracks
    ops = collective_ops(track, 2)
    assert (ops.track, ops.streams) == (2, [(0, 9), (9, 12)])
    assert (ops.start[:4] / 1000).tolist() == [1100, 1300, 1450, 2100]
    assert (ops.before_end[:4] / 1000).tolist() == [-np.inf, 1300, 1400, 1600]
    assert (ops.start[9:] / 1000).tolist() == [1200, 2200, 3200]
    assert (ops.before_end[9:] / 1000).tolist() == [-np.inf, 1500, 2500]
    assert ops.step.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 1, 2]
