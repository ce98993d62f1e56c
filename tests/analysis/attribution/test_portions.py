"""Test that the portions of buckets, by kernel or cause, are exclusive and sum to their buckets, whatever overlaps."""

from __future__ import annotations

import doctest
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.attribution import attribute, summary
from gpudiag.analysis.attribution.summary import summarise_portions
from gpudiag.analysis.compute.launchers import equal_shares
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.analyze import analyze
from gpudiag.intervals import Intervals, as_set, intersect, length, union
from gpudiag.model.analysis import Portion
from tests.timeline_builder import TraceBuilder

TRACES = Path(__file__).parents[2] / "traces"
SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1])), max_size=8)


def test_documented_examples_are_correct() -> None:
    assert doctest.testmod(summary).failed == 0


@given(SPANS, SPANS)
def test_overlapping_ops_share_time_equally(ops: list[tuple[int, int]], part: list[tuple[int, int]]) -> None:
    raw = Intervals(np.array([a for a, _ in ops], np.int64), np.array([b for _, b in ops], np.int64))
    inside = as_set(part)
    shares = equal_shares(raw, inside)
    expected = [0.0] * len(ops)
    for at in range(40):
        running = [i for i, (a, b) in enumerate(ops) if a <= at < b]
        if any(a <= at < b for a, b in part):
            for i in running:
                expected[i] += 1 / len(running)
    assert shares.tolist() == pytest.approx(expected)
    assert shares.sum() == pytest.approx(length(intersect(union(raw), inside)))


def test_portions_of_a_worked_example() -> None:
    """On rank 0 a gemm runs from 0 to 4 ms, and a relu from 2 to 6 ms on a second stream.

    Its all_reduce runs from 5 to 9 ms; the other rank joins at 7 ms."""

    def body(arrival: int) -> TraceBuilder:
        trace = TraceBuilder(rank=int(arrival == 7), world_size=2, unit_ns=1_000_000)
        for start in (0, 10, 20, 30):
            trace.step(start).compute(0, 4, "gemm")
            trace.compute(2, 6 if arrival == 5 else 4, "relu", stream=8)
            trace.collective(arrival, 9, size_bytes=1000, ranks=(0, 1))
        return trace

    timeline = build_timeline([body(5).build(), body(7).build()])
    portions = {(p.bucket, p.name): p for p in summarise_portions(timeline, attribute(timeline))}
    assert portions["compute", "gemm"].device_ms == pytest.approx((3.0, 3.0))
    assert portions["compute", "relu"].device_ms == pytest.approx((3.0, 1.0))
    assert portions["communication_wait", "all_reduce"].device_ms == pytest.approx((1.0, 0.0))
    assert portions["communication_transfer", "all_reduce"].device_ms == pytest.approx((2.0, 2.0))
    assert portions["communication_transfer", "all_reduce"].size_bytes == 1000
    assert portions["compute", "gemm"].per_step == pytest.approx(1.0)


@pytest.mark.parametrize("job", ["clean", "gloo_dataloader"])
def test_portions_of_real_traces_sum_to_their_buckets(job: str) -> None:
    analysis = analyze([TRACES / job])
    for place, device in enumerate(analysis.devices):
        sums: dict[str, float] = defaultdict(float)
        for portion in analysis.portions:
            sums[portion.bucket] += portion.device_ms[place]
        for bucket in ("compute", "communication_transfer", "communication_wait", "copy"):
            assert sums[bucket] == pytest.approx(device.buckets_ms[bucket], abs=1e-9)
        assert sums["idle"] <= device.buckets_ms["idle"] + 1e-9
        assert sum(device.step_times_ms) / len(device.step_times_ms) == pytest.approx(device.step_ms)


def of(*traces: TraceBuilder) -> dict[tuple[str, str], Portion]:
    timeline = build_timeline([trace.build() for trace in traces])
    return {(portion.bucket, portion.name): portion for portion in summarise_portions(timeline, attribute(timeline))}


def test_portions_are_sorted_by_total_time_within_each_bucket() -> None:
    traces = [TraceBuilder(rank, unit_ns=1_000_000) for rank in range(2)]
    for trace, first, second in zip(traces, (3, 7), (5, 3), strict=True):
        for step in range(4):
            trace.step(20 * step).compute(0, first, "a").compute(8, 8 + second, "b").copy(14, 15)
    portions = of(*traces)
    assert [name for bucket, name in portions if bucket == "compute"] == ["a", "b"]
    assert portions["compute", "a"].device_ms == pytest.approx((3, 7))
    assert portions["compute", "b"].device_ms == pytest.approx((5, 3))
    assert portions["compute", "b"].per_step == pytest.approx(1)


def test_portion_of_one_rank_is_averaged_over_all_ranks() -> None:
    many = TraceBuilder(0, unit_ns=1_000_000).steps(
        4, 20, lambda trace: trace.compute(0, 3, "a").compute(4, 6, "b").compute(7, 8, "b")
    )
    few = TraceBuilder(1, unit_ns=1_000_000).steps(4, 20, lambda trace: trace.compute(0, 3, "a"))
    portions = of(many, few)
    assert portions["compute", "b"].device_ms == pytest.approx((3, 0))
    assert portions["compute", "b"].per_step == pytest.approx(1)


def test_hidden_op_is_counted_with_zero_time() -> None:
    trace = TraceBuilder(unit_ns=1_000_000).steps(
        4, 20, lambda trace: trace.compute(0, 10).copy(2, 4, stream=9).collective(3, 8)
    )
    portions = of(trace)
    assert portions["copy", "Memcpy HtoD (Pinned -> Device)"].device_ms == pytest.approx((0.0,))
    assert portions["copy", "Memcpy HtoD (Pinned -> Device)"].per_step == pytest.approx(1)
    assert portions["communication_transfer", "all_reduce"].device_ms == pytest.approx((0.0,))
    assert portions["communication_transfer", "all_reduce"].per_step == pytest.approx(1)
    assert ("communication_wait", "all_reduce") in portions


def test_communication_copies_and_host_have_portions() -> None:
    """The host works from 4 to 12 ms, its copy runs from 5 to 7 ms, and two further collectives overlap."""
    trace = TraceBuilder(unit_ns=1_000_000)
    for step in range(4):
        trace.step(20 * step).compute(0, 4).annotation(4, 12, "gpudiag.exchange")
        trace.copy(5, 7, "Memcpy DtoH (Device -> Pinned)", launch=5)
        trace.collective(13, 17, size_bytes=8).collective(15, 19, "all_gather", stream=21, group="1", size_bytes=4)
    portions = of(trace)
    shares = {name: one.device_ms[0] for (bucket, name), one in portions.items() if bucket == "communication_transfer"}
    assert shares == pytest.approx({"host": 6, "Memcpy DtoH (Device -> Pinned)": 2, "all_reduce": 3, "all_gather": 3})
    counts = {name: one.per_step for (_, name), one in portions.items()}
    assert (counts["host"], counts["Memcpy DtoH (Device -> Pinned)"], counts["all_gather"]) == (0, 1, 1)
    assert (
        portions["communication_transfer", "all_gather"].group,
        portions["communication_transfer", "host"].group,
    ) == (
        "1",
        "",
    )
    assert portions["idle", "queued"].device_ms == pytest.approx((1,))
