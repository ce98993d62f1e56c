"""Test every figure of the summary of a job with two ranks and three steps, computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.attribution.summary import (
    summarise_clocks,
    summarise_collectives,
    summarise_devices,
    summarise_kernels,
    summarise_operators,
    summarise_steps,
    summarise_waits,
)
from gpudiag.analysis.timeline import build_timeline
from gpudiag.model.analysis import RankClock, Wait
from gpudiag.model.timeline import Attribution
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from gpudiag.model.timeline import Timeline

#: Start times of six steps.
STARTS = (0, 100, 200, 330, 430, 530)
SIZE = 1_000_000


def near(value: float | tuple[float, ...]) -> Any:
    return pytest.approx(value)


def timeline(*, ranks: int = 2, missing: bool = False, ahead_ns: int = 0) -> Timeline:
    """Return a timeline with a matrix product, an all-reduce and two norms per step.

    Rank 1 computes for 50 µs and the other ranks for 30 µs, the all-reduce takes 20 µs, and each norm takes 5 µs.
    """
    traces = []
    for rank in range(ranks):
        trace, busy = TraceBuilder(rank, world_size=ranks), 50 if rank == 1 else 30
        for at in STARTS:
            trace.step(at).operator(0, 10, "aten::mm").operator(2, 6, "aten::empty").operator(12, 14, "aten::norm")
            trace.operator(15, 16, "aten::norm").by(5).operator(0, 90, "aten::elsewhere").by(1)
            trace.compute(0, busy).collective(busy, 70, size_bytes=SIZE, ranks=tuple(range(ranks)))
            trace.compute(70, 75, "norm").compute(80, 85, "norm")
        if rank == 1:
            trace.clock_ahead(ahead_ns)
        traces.append(trace.build())
    return build_timeline(traces[:-1] if missing else traces)


def test_summary_of_steps_and_devices() -> None:
    built = timeline()
    attribution = attribute(built)
    steps = summarise_steps(built, attribution)
    assert (steps.analysed, steps.mean_ms, steps.median_ms) == (4, near(0.1075), 0.1)
    late, other = (device for device in summarise_devices(built, attribution)[::-1])
    assert (other.rank, late.rank, late.device) == (0, 1, "cuda:0")
    assert late.step_ms == near(0.1075)
    assert late.step_times_ms == near((0.1, 0.13, 0.1, 0.1))
    for device, compute, wait in ((other, 0.04, 0.02), (late, 0.06, 0.0)):
        assert device.buckets_ms["compute"] == near(compute)
        assert device.buckets_ms["communication_wait"] == near(wait)
        assert device.buckets_ms["communication_transfer"] == near(0.02)
        assert device.hidden_communication_ms == 0


def test_waits_name_the_rank_that_arrived_last() -> None:
    built = timeline(ranks=3)
    assert summarise_waits(built, attribute(built)) == (
        Wait(rank=0, on_rank=1, ms_per_step=near(0.02)),
        Wait(rank=2, on_rank=1, ms_per_step=near(0.02)),
    )
    # A missing rank may have arrived even later, so no wait is attributed to a rank.
    partly = timeline(ranks=3, missing=True)
    assert summarise_waits(partly, attribute(partly)) == ()


def test_collectives_are_summarized_by_kind() -> None:
    (found,) = summarise_collectives(timeline())
    assert (found.operation, found.ranks, found.size_bytes, found.per_step) == ("all_reduce", 2, SIZE, 1)
    assert found.transfer_us == 20
    # Half of the eight collectives have a wait of 20 µs.
    assert found.wait_us == 10
    # 1 MB in 20 µs is 50 GB/s; with two ranks the bus bandwidth equals this rate.
    assert found.busbw_gb_per_s == near(50)
    three = summarise_collectives(timeline(ranks=3))[0]
    assert (three.ranks, three.per_step) == (3, 1)
    assert three.busbw_gb_per_s == near(50 * 4 / 3)


def test_kernels_and_operators_with_the_most_time_are_summarized() -> None:
    built = timeline()
    assert [(kernel.name, near(kernel.ms_per_step), kernel.per_step) for kernel in summarise_kernels(built)] == [
        ("gemm", 0.04, 1),
        ("norm", 0.01, 2),
    ]
    assert [row.name for row in summarise_kernels(built)[:1]] == ["gemm"]
    operators = summarise_operators(built)
    assert [(operator.name, near(operator.own_ms_per_step), operator.per_step) for operator in operators] == [
        ("aten::mm", 0.006, 1),
        ("aten::empty", 0.004, 1),
        ("aten::norm", 0.003, 2),
    ]
    assert [row.name for row in summarise_operators(built)[:2]] == ["aten::mm", "aten::empty"]


def test_clock_offsets_are_listed_by_rank() -> None:
    # Collectives end at the same time on both ranks, but rank 1's clock shows these ends 3 ms later.
    (clock,) = summarise_clocks(timeline(ahead_ns=3_000_000))
    assert clock == RankClock(rank=1, offset_ms=-3.0, residual_ms=0, matched=6)


def waiting(*rank_1_late_us: int, unit_ns: int = 1000) -> tuple[Wait, ...]:
    """Return the waits of a job whose rank 1 is late by `rank_1_late_us`, one number for each collective of a step.

    Rank 2 enters each collective 1 µs before rank 0. With `unit_ns`, all numbers are in units of `unit_ns` instead.
    """
    traces = []
    for rank in range(3):
        trace = TraceBuilder(rank, world_size=3, unit_ns=unit_ns)
        for step in range(5):
            trace.step(100_000 * step).compute(0, 5).compute(50_000, 90_000)
            for place, late in enumerate(rank_1_late_us):
                begin = 100 * place + 10 + (late if rank == 1 else 0) - rank // 2
                trace.collective(begin, 100 * place + 90, ranks=(0, 1, 2))
        traces.append(trace.build())
    built = build_timeline(traces)
    return summarise_waits(built, attribute(built))


def test_waits_below_a_microsecond_are_omitted() -> None:
    assert [wait.rank for wait in waiting(10, unit_ns=100)] == [2, 0]
    assert [(wait.rank, wait.ms_per_step) for wait in waiting(9, unit_ns=100)] == [(2, near(0.001))]
    assert [(wait.rank, wait.ms_per_step) for wait in waiting(20, 30)] == [(2, near(0.052)), (0, near(0.05))]


def test_unread_device_has_host_step_times() -> None:
    built = replace(
        timeline(), tracks=(), unseen={0: np.array([0, 100, 300]) * 1000, 1: np.array([0, 100, 300]) * 1000}
    )
    steps = summarise_steps(built, Attribution(tracks=()))
    assert (steps.analysed, steps.mean_ms, steps.median_ms) == (2, near(0.15), near(0.15))
    nothing = summarise_steps(replace(built, unseen={}), Attribution(tracks=()))
    assert (nothing.analysed, nothing.mean_ms, nothing.median_ms) == (0, 0, 0)


def test_twenty_names_with_the_most_time_are_kept() -> None:
    trace = TraceBuilder()
    for step in range(5):
        trace.step(10_000 * step)
        for at in range(22):
            trace.operator(100 * at, 100 * at + 90 - at, f"op{at}").compute(100 * at, 100 * at + 90 - at, f"kernel{at}")
    built = build_timeline([trace.build()])
    assert [kernel.name for kernel in summarise_kernels(built)] == [f"kernel{at}" for at in range(20)]
    assert [operator.name for operator in summarise_operators(built)] == [f"op{at}" for at in range(20)]
