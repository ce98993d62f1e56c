"""Test that simulation takes time and memory in proportion to the events, within a generous factor."""

from __future__ import annotations

import time
import tracemalloc
from typing import TYPE_CHECKING

from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.graph import recorded_scenario
from gpudiag.analysis.diagnosis.simulation.simulate import System, simulate
from gpudiag.analysis.timeline import build_timeline
from tests.analysis.diagnosis.rule_examples.jobs import DDP, Job, kernels

if TYPE_CHECKING:
    from gpudiag.model.timeline import Timeline

FEW, TIMES = 8, 8
#: Maximum growth factor of time and memory for 8 times as many events. Linear growth would give 8, and quadratic growth
#: 64.
AT_MOST = 24


def timeline_of(steps: int) -> Timeline:
    return build_timeline(Job(ranks=2, step=(kernels(5, count=150), *DDP), steps=steps + 2).traces())


def simulation(timeline: Timeline) -> None:
    graph = build_graph(timeline)
    assert graph is not None
    system = System(graph)
    simulate(system, system.weights(recorded_scenario(graph)))


def fastest(timeline: Timeline) -> float:
    times = []
    for _ in range(3):
        begin = time.process_time()
        simulation(timeline)
        times.append(time.process_time() - begin)
    return min(times)


def peak(timeline: Timeline) -> int:
    tracemalloc.start()
    simulation(timeline)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_time_and_memory_grow_linearly_with_events() -> None:
    few, many = timeline_of(FEW), timeline_of(FEW * TIMES)
    assert fastest(many) < AT_MOST * fastest(few)
    assert peak(many) < AT_MOST * peak(few)
