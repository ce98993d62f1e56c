"""Test the removal of contention, and which kernels match."""

from __future__ import annotations

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.contention import Contention, find_contention
from gpudiag.analysis.timeline import build_timeline
from tests.timeline_builder import TraceBuilder

TWINS = Contention(
    free_ns=np.array([np.nan, 80.0, 80.0, 120.0, 80.0]), waiting_share=np.array([0.0, 1.0, 0.0, 1.0, 0.5])
)
MEASURED = np.full(5, 100.0)
PERIOD = 2000


def test_contention_is_removed_but_kernels_never_get_longer() -> None:
    assert TWINS.removed_from(MEASURED).tolist() == [100, 80, 80, 100, 80]


def test_contention_decreases_with_the_wait() -> None:
    assert TWINS.waiting_removed_from(MEASURED, np.full(5, 0.5)).tolist() == [100, 90, 100, 100, 95]
    assert TWINS.waiting_removed_from(MEASURED, np.zeros(5)).tolist() == MEASURED.tolist()


def test_removing_contention_is_idempotent() -> None:
    once = TWINS.removed_from(MEASURED)
    assert TWINS.removed_from(once).tolist() == once.tolist()
    assert TWINS.waiting_removed_from(once, np.ones(5)).tolist() == once.tolist()


def contention_free(beside: list[tuple[int, str]], alone: list[tuple[int, str]]) -> dict[tuple[str, int], list[float]]:
    """Return contention-free durations in µs by (name, recorded duration).

    Each rank runs the kernels `beside` (µs, name) during an all-reduce, and then the kernels `alone`.
    """
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        for step in range(6):
            trace.step(step * PERIOD)
            at = 10
            for length, name in beside:
                trace.compute(at, at + length, name)
                at += length + 2
            trace.collective(5, at + 5, ranks=(0, 1))
            at += 20
            for length, name in alone:
                trace.compute(at, at + length, name)
                at += length + 2
    timeline = build_timeline([trace.build() for trace in ranks])
    graph = build_graph(timeline)
    assert graph is not None
    counterparts, events = find_contention(graph, timeline), timeline.traces[0].events
    found: dict[tuple[str, int], list[float]] = {}
    for op in np.flatnonzero((graph.device.op_class == 0) & (graph.device.track == 0)):
        took = round(float(graph.device.end[op] - graph.device.start[op]) / 1e3)
        if not np.isnan(counterparts.free_ns[op]):
            key = (events.name_of(int(graph.device.row[op])), took)
            found.setdefault(key, []).append(float(counterparts.free_ns[op]) / 1e3)
    return found


LAYER = [(90, "gemm"), (12, "bias"), (150, "dgrad")]
ALONE = [(60, "gemm"), (10, "bias"), (100, "dgrad")]


def test_kernels_of_different_layers_match() -> None:
    durations = contention_free(LAYER * 4, ALONE * 2)
    expected = {("gemm", 90): 60.0, ("bias", 12): 10.0, ("dgrad", 150): 100.0}
    assert durations.keys() == expected.keys()
    for key, times in durations.items():
        # The step's first kernel has a different predecessor than its matching kernels.
        assert times == pytest.approx([expected[key]] * len(times), rel=0.02)


def test_kernels_of_various_durations_do_not_match() -> None:
    assert contention_free([(90, "gemm")] * 4, [(30, "gemm"), (60, "gemm"), (120, "gemm"), (240, "gemm")] * 2) == {}


def test_layer_of_a_different_size_does_not_match() -> None:
    # Kernel times halve from layer to layer, as in a convolutional network, without contention.
    sizes = [(800, "conv"), (400, "conv"), (200, "conv")]
    assert contention_free(sizes, [(50, "conv"), (50, "conv")]) == {}
    # Kernels named `conv` take 3 times as long in every layer during the all-reduce, so the difference is not
    # contention.
    assert contention_free([(300, "conv")] * 3, [(100, "conv")] * 3) == {}


def test_unmatched_kernel_is_slowed_like_matched_ones() -> None:
    durations = contention_free([*LAYER * 4, (40, "loss")], ALONE * 2)
    slowed = (90 + 12 + 150) / (60 + 10 + 100)
    assert durations["loss", 40] == pytest.approx([40 / slowed] * len(durations["loss", 40]), rel=0.02)
    assert len(durations["loss", 40]) == len(durations["gemm", 90]) / 4
