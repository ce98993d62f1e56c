"""Jobs of CPU processes: which collective a pause of the training thread waited for."""

from __future__ import annotations

import pytest

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
