"""Jobs of CPU processes: which collective a pause of the training thread waited for."""

from __future__ import annotations

import pytest

from gpudiag.model.analysis import BUCKETS
from tests.analysis.diagnosis.cases import case_of, diagnosis_of
from tests.timeline_builder import TraceBuilder

PERIOD = 100_000


def two_ranks(recorded_late: int) -> list[TraceBuilder]:
    """6 steps of 100 ms: 38 ms of compute, two all-reduces handed over at its end, which take 2 and 60 ms together.

    The training thread goes on at the end of the second, whose own thread records its end `recorded_late` µs later."""
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
def test_a_pause_waited_for_the_collective_whose_end_is_nearest_to_its(recorded_late: int) -> None:
    traces = [trace.build() for trace in two_ranks(recorded_late)]
    what_if = case_of(traces).what_if
    assert what_if is not None
    assert what_if.replayed_ms == pytest.approx(100, rel=0.01)
    found, _ = diagnosis_of(traces)
    assert found["communication-bound"].recoverable_ms_per_step == pytest.approx(60, rel=0.02)


def tensor_parallel(*, beside: bool = False) -> list[TraceBuilder]:
    """6 steps of 40 ms: twice 9 ms of matrix product and 10 ms in a function of autograd that sums it over the ranks.

    With `beside` the function computes while its sum is under way."""
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


def test_waiting_for_a_collective_inside_an_operator_is_communication() -> None:
    traces = [trace.build() for trace in tensor_parallel()]
    case = case_of(traces)
    for lane in case.attribution.lanes:
        table = dict(zip(BUCKETS, lane.buckets_ns.mean(axis=0) / 1e6, strict=True))
        assert table["communication_transfer"] == pytest.approx(2 * 9.85, rel=0.02)
        assert table["compute"] == pytest.approx(2 * 9.2, rel=0.02)
    what_if = case.what_if
    assert what_if is not None
    assert what_if.replayed_ms == pytest.approx(40, rel=0.01)
    found, _ = diagnosis_of(traces)
    assert next(iter(found)) == "communication-bound"
    assert found["communication-bound"].recoverable_ms_per_step == pytest.approx(2 * 9.8, rel=0.05)


def test_an_operator_that_computes_beside_its_collective_does_not_wait() -> None:
    traces = [trace.build() for trace in tensor_parallel(beside=True)]
    for lane in case_of(traces).attribution.lanes:
        table = dict(zip(BUCKETS, lane.buckets_ns.mean(axis=0) / 1e6, strict=True))
        assert table["communication_transfer"] == pytest.approx(0, abs=0.1)
    assert "communication-bound" not in diagnosis_of(traces)[0]


def test_a_hook_that_hands_over_and_returns_does_not_wait() -> None:
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * PERIOD)
            # It loses its core for a while; the collective goes on beside what comes next.
            trace.operator(1_000, 2_000, "torch::autograd::AccumulateGrad").operator(1_100, 1_200, "c10d::allreduce_")
            trace.operator(2_000, 99_900, "aten::convolution_backward").gloo(1_150, 60_000, thread=91, ranks=(0, 1))
    (lane, _) = case_of([trace.build() for trace in ranks]).attribution.lanes
    assert lane.buckets_ns[:, BUCKETS.index("communication_transfer")].max() == 0


@pytest.mark.parametrize("recorded_late", [0, 3_000])
def test_a_pause_in_which_no_collective_seems_to_end_waited_for_the_one_that_lay_in_it(recorded_late: int) -> None:
    """Rank 1 fetches for 50 ms; rank 0's thread goes on when the all-reduce is done, which is recorded later."""
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


def test_a_pause_whose_collective_ended_at_its_beginning_is_no_wait() -> None:
    """Both ranks log for 40 ms after an all-reduce of 2 ms, without a call of the framework in between."""
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
