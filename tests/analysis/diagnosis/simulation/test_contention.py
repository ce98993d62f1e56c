"""What kernels gain when what disturbs them goes away, and which kernels tell how much."""

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


def test_the_disturbed_get_their_twins_time_and_no_more() -> None:
    assert TWINS.removed_from(MEASURED).tolist() == [100, 80, 80, 100, 80]


def test_when_half_of_the_waiting_is_gone_so_is_half_of_what_it_cost() -> None:
    assert TWINS.waiting_removed_from(MEASURED, np.full(5, 0.5)).tolist() == [100, 90, 100, 100, 95]
    assert TWINS.waiting_removed_from(MEASURED, np.zeros(5)).tolist() == MEASURED.tolist()


def test_relieved_again_nothing_changes() -> None:
    once = TWINS.removed_from(MEASURED)
    assert TWINS.removed_from(once).tolist() == once.tolist()
    assert TWINS.waiting_removed_from(once, np.ones(5)).tolist() == once.tolist()


def undisturbed(beside: list[tuple[int, str]], alone: list[tuple[int, str]]) -> dict[tuple[str, int], list[float]]:
    """Of one rank that runs in each step kernels (µs, name) beside an all-reduce and then others alone: what those
    beside are found to take undisturbed, in µs, by name and measured time."""
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


def test_the_kernels_of_a_steps_other_layers_are_counterparts() -> None:
    found = undisturbed(LAYER * 4, ALONE * 2)
    expected = {("gemm", 90): 60.0, ("bias", 12): 10.0, ("dgrad", 150): 100.0}
    assert found.keys() == expected.keys()
    for key, times in found.items():
        # The step's first kernel has other neighbours than its kin.
        assert times == pytest.approx([expected[key]] * len(times), rel=0.02)


def test_kernels_of_one_name_that_take_long_and_short_alone_tell_nothing() -> None:
    assert undisturbed([(90, "gemm")] * 4, [(30, "gemm"), (60, "gemm"), (120, "gemm"), (240, "gemm")] * 2) == {}


def test_a_layer_of_another_size_is_no_counterpart() -> None:
    # A step whose kernels halve from layer to layer, as a convolutional network's do; nothing disturbed any of them.
    sizes = [(800, "conv"), (400, "conv"), (200, "conv")]
    assert undisturbed(sizes, [(50, "conv"), (50, "conv")]) == {}
    # The same name takes 3 times as long in every layer beside: that is no disturbance.
    assert undisturbed([(300, "conv")] * 3, [(100, "conv")] * 3) == {}


def test_what_has_no_counterpart_is_disturbed_as_those_that_have() -> None:
    found = undisturbed([*LAYER * 4, (40, "loss")], ALONE * 2)
    slowed = (90 + 12 + 150) / (60 + 10 + 100)
    assert found["loss", 40] == pytest.approx([40 / slowed] * len(found["loss", 40]), rel=0.02)
    assert len(found["loss", 40]) == len(found["gemm", 90]) / 4
