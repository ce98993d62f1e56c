"""Test the cost of communication besides transfers: bucket copies and contention."""

from __future__ import annotations

import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.counterfactuals import without_communication, without_input, without_transfer
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if
from gpudiag.analysis.timeline import build_timeline
from tests.timeline_builder import TraceBuilder

PERIOD = 1000


def two_ranks(*, packed: bool) -> tuple[TraceBuilder, ...]:
    """Make steps of 1 ms that are limited by the device.

    A step has 500 µs of kernels, 100 µs of bucket copies and 400 µs of transfer. During the transfer a kernel of 200 µs
    runs after a gap of 20 µs instead of the usual 2 µs. All ops are launched long before they start.
    """
    ranks = tuple(TraceBuilder(rank, world_size=2) for rank in range(2))
    for trace in ranks:
        for step in range(8):
            trace.step(step * PERIOD)
            if packed:
                trace.operator(0, 3, "torch::distributed::reducer::mul_out")
            ahead = PERIOD
            trace.compute(ahead, ahead + 248, "a", launch=(10, 11)).compute(
                ahead + 250, ahead + 498, "b", launch=(20, 21)
            )
            trace.compute(ahead + 500, ahead + 598, "mul", launch=(1, 2))
            trace.collective(ahead + 600, ahead + 998, ranks=(0, 1), launch=(30, 31))
            trace.compute(ahead + 618, ahead + 818, "c", launch=(40, 41))
    return ranks


def what_if(*, packed: bool) -> WhatIf:
    timeline = build_timeline([trace.build() for trace in two_ranks(packed=packed)])
    what_if = Case(timeline=timeline, attribution=attribute(timeline)).what_if
    assert what_if is not None
    return what_if


def test_bucket_copies_run_in_reducer_operators() -> None:
    with_bucket_copy = what_if(packed=True)
    tracks = len(with_bucket_copy.graph.ranks)
    assert with_bucket_copy.model.bucket_copy.sum() == with_bucket_copy.graph.steps * tracks
    assert not what_if(packed=False).model.bucket_copy.any()


def test_without_communication_leaves_only_compute_kernels() -> None:
    one = what_if(packed=True)
    assert one.corrected_ms == pytest.approx(1.0, rel=0.01)
    # Input is removed from the host, so that the host does not determine the step time.
    costs = without_input(one, one.corrected)
    alone = one.step_ms(without_communication(one, costs))
    # There are three kernels of 248, 248 and 200 µs, 2 µs apart.
    assert alone == pytest.approx(0.702, abs=0.006)
    assert one.step_ms(without_transfer(one, costs)) > alone + 0.09


def test_job_without_communication_is_unchanged() -> None:
    trace = TraceBuilder(0)
    for step in range(6):
        trace.step(step * 100).compute(100, 190, launch=(1, 2))
    timeline = build_timeline([trace.build()])
    one = build_what_if(timeline)
    assert one is not None
    assert one.saving_ms(without_communication(one, one.corrected)) == 0
