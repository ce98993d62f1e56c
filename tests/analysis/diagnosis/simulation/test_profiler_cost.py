"""Test the estimate of profiler overhead for each host, and its fit to unprofiled steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.build import build_graph
from gpudiag.analysis.diagnosis.simulation.job_model import JobModel
from gpudiag.analysis.diagnosis.simulation.profiler_cost import (
    HostPace,
    host_pace,
    limited_to,
    profiler_cost,
    typical_ns_per_event,
    usual_ns_per_event,
)
from gpudiag.analysis.diagnosis.simulation.what_if import (
    WhatIf,
    fit_host_time,
    fit_step_time,
    limit_each_host,
)
from gpudiag.analysis.timeline import build_timeline
from gpudiag.units import NS_PER_MS
from tests.analysis.diagnosis.simulation.few_nodes import graph_of, host_of
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Minimum number of calls with which hosts are compared: four calls in each of 32 sections.
CALLS = 128


@pytest.mark.parametrize(
    ("events", "typical"),
    [((1, 3, 4), 20), ((1, 2, 5), 100), ((4, 2, 2), 10), ((3, 2, 3), 20), ((0, 0, 4), 100), ((0, 0, 0), 0)],
)
def test_time_per_event_is_the_median_over_events(events: tuple[int, ...], typical: float) -> None:
    """Nodes with `events` events take 10, 20 and 100 ns per event; the graph has these nodes in another order."""
    takes = [20, 100, 10]
    number = [events[1], events[2], events[0]]
    busy = [each * max(count, 1) for each, count in zip(takes, number, strict=True)]
    assert typical_ns_per_event(graph_of(host_of(busy=busy, events=number))) == typical


def test_time_per_event_is_the_lower_median_over_hosts() -> None:
    host = host_of(busy=[30, 10, 20, 40, 90], events=[1, 1, 1, 1, 0], process=[0, 1, 2, 3, 4])
    assert typical_ns_per_event(graph_of(host)) == 20
    # A process whose rank is not requested does not count.
    assert typical_ns_per_event(graph_of(host, ranks={0: 0, 3: 1})) == 30


@pytest.mark.parametrize(
    ("per_event", "cost"),
    [(3000, 1500), (1900, 1000), (2100, 1050), (5100, 2500), (6000, 2500), (6001, 1270), (0, 1270), (1, 1000)],
)
def test_overhead_is_half_of_time_per_event_within_limits(per_event: float, cost: float) -> None:
    assert usual_ns_per_event(graph_of(host_of(busy=[per_event] * CALLS, events=[1] * CALLS))) == cost


def test_overhead_is_the_default_for_few_calls_or_beside_a_loader() -> None:
    def of(calls: int = CALLS, steps: int = 1, processes: int = 1, **columns: Sequence[float]) -> float:
        process = np.repeat(np.arange(processes), -(-calls // processes))[:calls].tolist()
        host = host_of(busy=[3000] * calls, events=[1] * calls, process=process, **columns)
        return usual_ns_per_event(graph_of(host, steps=steps))

    assert [of(), of(CALLS - 1), of(2 * CALLS, steps=2), of(2 * CALLS - 1, steps=2)] == [1500, 1270, 1500, 1270]
    assert [of(2 * CALLS, processes=2), of(2 * CALLS - 1, processes=2)] == [1500, 1270]
    assert of(steps=0) == 1500
    assert of(input=[0.0] * (CALLS - 1) + [1]) == 1270


def test_overhead_is_per_event_and_limited_to_a_share_of_work() -> None:
    host = host_of(
        busy=[1000, 1000, 100, 1000],
        events=[2, 0, 2, 3],
        profiler=[0, 50, 0, 50],
        before_first_op=[0, 7, 7, 7],
        process=[0, 0, 0, 1],
    )
    pace = HostPace(np.array([1.0, 1.0, 1.0, 2.0]), {0: 1.0, 1: 1.0})
    cost = profiler_cost(graph_of(host), 100.0, pace)
    assert cost.busy.tolist() == [200, 50, 90, 650]
    assert cost.untraced.tolist() == [0, 0, 0, 0]


def test_overhead_of_a_slow_host_covers_untraced_time() -> None:
    host = host_of(
        busy=[100, 100, 100, 100], events=[10, 10, 5, 5], process=[0, 1, 1, 1], step=[0, 0, 0, 1],
        before_first_op=[0, 50, 60, 900], untraced=[0, 70, 40, 900], profiler=[0, 0, 10, 10],
    )  # fmt: skip
    graph = graph_of(host, steps=2)
    pace = HostPace(np.ones(4), {0: 1.0, 1: 3.0, 2: 5.0})
    cost = profiler_cost(graph, 1.0, pace)
    # The overhead of 3 times 40 ns is distributed over 300 ns of work and 100 ns of untraced time within steps.
    assert cost.busy.tolist() == pytest.approx([10, 30, 30, 30])
    assert cost.untraced.tolist() == pytest.approx([0, 0, 30, 0])
    # Overhead is at most nine tenths of the time.
    cost = profiler_cost(graph, 1.0, HostPace(np.ones(4), {1: 30.0}))
    assert cost.busy.tolist() == pytest.approx([10, 90, 90, 90])
    assert cost.untraced.tolist() == pytest.approx([0, 0, 90, 0])
    assert profiler_cost(graph, 1.0, HostPace(np.ones(4), {1: 1.1})).untraced.sum() > 0


def pace_of(*ranks: Sequence[float], steps: int = 1, **columns: Sequence[float]) -> HostPace:
    """Return the host pace of `ranks`, given as the times of their calls; each step has `CALLS` calls."""
    host = host_of(
        busy=np.concatenate([np.array(of, float) for of in ranks]).tolist(),
        process=np.repeat(np.arange(len(ranks)), [len(of) for of in ranks]).tolist(),
        step=np.concatenate([np.arange(len(of)) // CALLS for of in ranks]).tolist(),
        **columns,
    )
    return host_pace(graph_of(host, steps=steps))


USUAL = [10.0] * CALLS


@pytest.mark.parametrize(
    ("slower", "times", "slow"),
    [
        ([20.0] * CALLS, 2.0, 2.0),
        ([15.0] * CALLS, 1.5, 1.5),
        ([14.9] * CALLS, 1.49, 1.0),
        ([10.0] * 127 + [9_000], 1.0, 1.0),  # a single section is slow
        ([30.0] * 64 + [10.0] * 64, 1.0, 1.0),  # half of the sections are slow
        ([30.0] * 68 + [10.0] * 60, 3.0, 2640 / 1280),  # one more than half of the sections is slow
        ([10.0] * 60 + [30.0] * 68, 3.0, 2640 / 1280),
        ([5.0] * CALLS, 1.0, 1.0),
    ],
)
def test_host_is_slow_if_most_sections_of_the_step_are_slow(slower: list[float], times: float, slow: float) -> None:
    pace = pace_of(USUAL, slower, USUAL)
    assert pace.by_process == pytest.approx({0: 1.0, 1: slow, 2: 1.0})
    assert pace.by_node[:CALLS].tolist() == [1.0] * CALLS
    if slower[0] > 5:
        assert pace.by_node[CALLS : 2 * CALLS].tolist() == pytest.approx([times] * CALLS)
    else:
        assert pace.by_node[CALLS : 2 * CALLS].tolist() == [0.5] * CALLS


def test_faster_of_two_hosts_counts_as_usual() -> None:
    assert pace_of([20.0] * CALLS, USUAL).by_process == {0: 2.0, 1: 1.0}


def test_sections_are_weighted_by_usual_time() -> None:
    """The last four calls take most of the step, so all other sections have little weight."""
    long = [1.0] * 124 + [100.0] * 4
    assert pace_of(long, [5.0] * 124 + [100.0] * 4, long).by_process[1] == 1.0
    assert pace_of(long, [1.0] * 124 + [200.0] * 4, long).by_process[1] == pytest.approx(924 / 524)


def test_pace_is_per_step() -> None:
    pace = pace_of(USUAL * 2, [*USUAL, *[30.0] * CALLS], USUAL * 2, steps=2)
    assert pace.by_node[2 * CALLS : 4 * CALLS].tolist() == [1.0] * CALLS + [3.0] * CALLS
    # In the mean over both steps, each section takes twice as long.
    assert pace.by_process == {0: 1.0, 1: 2.0, 2: 1.0}


def test_only_untraced_time_within_steps_counts() -> None:
    opening = [90.0] + [0.0] * (CALLS - 1)
    within = [0.0] + [10.0] * (CALLS - 1)
    silent = pace_of(USUAL, USUAL, USUAL, before_first_op=[0.0] * CALLS + within + [0.0] * CALLS)
    assert silent.by_process[1] == pytest.approx(2 - 1 / CALLS)
    stalled = pace_of(USUAL, USUAL, USUAL, untraced=[0.0] * CALLS + within + [0.0] * CALLS)
    assert stalled.by_process == silent.by_process
    opened = pace_of([0.0] * CALLS, USUAL, USUAL, before_first_op=opening * 3)
    assert opened.by_node.tolist() == [0.0] * CALLS + [1.0] * 2 * CALLS


def test_pace_is_unknown_for_few_calls() -> None:
    pace = pace_of(USUAL[1:], [20.0] * (CALLS - 1))
    assert pace.by_process == {0: 1.0, 1: 1.0}
    assert pace.by_node.tolist() == [1.0] * 2 * (CALLS - 1)


class FakeWhatIf:
    """Fake a host step of 30 ms, which shortens by 4 µs per ns of assumed overhead, but not below the device step.

    `device` is the device step in ms, and `light` means a kernel-only trace.
    """

    def __init__(self, per_event_ns: float = 1250.0, *, device: float = 0.0, is_cpu: bool = False, light: bool = False):
        self.per_event_ns, self.device, self.is_cpu, self.light = per_event_ns, device, is_cpu, light
        self.corrected_ms = max(30 - per_event_ns / 250, device)
        self.timeline = SimpleNamespace(
            tracks=[SimpleNamespace(is_cpu=is_cpu)], traces=[SimpleNamespace(operators_merged=light)]
        )
        #: Over two steps the hosts of three ranks are busy for 60, 80 and 100 ms minus overhead.
        busy = [60 - per_event_ns / 125, 80 - per_event_ns / 125, 50 - per_event_ns / 250, 50 - per_event_ns / 250]
        self.host_corrected = SimpleNamespace(busy=np.array(busy) * NS_PER_MS)
        host = SimpleNamespace(process=np.array([0, 1, 2, 2]))
        self.graph = SimpleNamespace(host=host, steps=2, ranks={0: 4, 1: 5, 2: 6})

    def at_cost(self, per_event_ns: float) -> FakeWhatIf:
        return FakeWhatIf(per_event_ns, device=self.device, is_cpu=self.is_cpu, light=self.light)


def steps_timed(simulation: Any, step_ms: float) -> float:
    """Return the fitted overhead per event in ns if the unprofiled step takes `step_ms`.

    An overhead of 1 ns per event lengthens the step by 4 µs. The fit has a tolerance of a thousandth of the step.
    """
    return fit_step_time(simulation, step_ms).per_event_ns


@pytest.mark.parametrize(
    ("timed", "device", "cost"),
    [
        (20.0, 0, 2495),  # an overhead of 2495 ns gives 20.02 ms
        (24.76, 0, 1250),  # 24.76 ms is within 1 % of the current 25 ms
        (24.75, 0, 1250 + 56),
        (25.26, 0, 1250 - 59),
        (25.24, 0, 1250),
        (28.0, 0, 507),  # an overhead of 507 ns gives 27.972 ms
        (35.0, 0, 7.5),  # even zero overhead gives a shorter step
        (20.0, 22, 1939.5),  # the step cannot be shorter than the device's 22 ms; the tolerances are 1 % and 0.1 %
        (5.0, 0, 4972),  # the overhead is at most twice the highest measured overhead, which gives 10 ms
    ],
)
def test_fitted_overhead_is_the_nearest_that_reproduces_the_unprofiled_step(
    timed: float, device: float, cost: float
) -> None:
    assert steps_timed(FakeWhatIf(device=device), timed) == pytest.approx(cost, abs=3)


def test_kernel_only_trace_may_have_higher_overhead_per_call() -> None:
    assert steps_timed(FakeWhatIf(light=True), 5.0) == pytest.approx(6249, abs=6)
    mixed = FakeWhatIf(light=True)
    mixed.timeline.traces.append(SimpleNamespace(operators_merged=False))
    mixed.at_cost = FakeWhatIf(light=False).at_cost  # type: ignore[method-assign]
    assert steps_timed(mixed, 5.0) < 5000


def hosts_timed(simulation: Any, step_ms: float, host_ms: dict[int, float]) -> float:
    return fit_host_time(simulation, step_ms, host_ms).per_event_ns


@pytest.mark.parametrize(
    ("host_ms", "cost"),
    [
        ({4: 20.0, 5: 30.0, 6: 40.0}, 2500),  # each host takes 5 ms more than in unprofiled steps
        ({4: 26.0, 5: 30.0, 6: 35.0}, 2500),  # of three hosts, the median difference counts
        ({4: 26.0, 5: 30.0}, 1250),  # of two hosts the lower difference counts, here -1 ms of host 4
        ({4: 25.0, 5: 35.0, 6: 45.0}, 1250),
        ({4: 24.9, 5: 34.9, 6: 44.9}, 1275),
        ({6: 40.0}, 2500),
        ({9: 0.0}, 1250),
        ({}, 1250),
        ({4: 0.0, 5: 0.0, 6: 0.0}, 5000),
    ],
)
def test_fitted_overhead_brings_hosts_to_their_unprofiled_time(host_ms: dict[int, float], cost: float) -> None:
    assert hosts_timed(FakeWhatIf(device=25), 25.0, host_ms) == pytest.approx(cost, abs=3)


@pytest.mark.parametrize(("device", "cost"), [(19.81, 2500), (19.79, 1250)])
def test_host_fit_is_rejected_if_the_step_becomes_too_short(device: float, cost: float) -> None:
    """The fit is rejected if it makes the step shorter than 20 ms by more than 1 %."""

    class Shorter(FakeWhatIf):
        def at_cost(self, per_event_ns: float) -> FakeWhatIf:
            other = super().at_cost(per_event_ns)
            other.corrected_ms = self.device
            return other

    assert hosts_timed(Shorter(device=device), 20.0, {4: 20.0, 5: 30.0, 6: 40.0}) == pytest.approx(cost, abs=3)


def test_host_fit_skips_cpu_processes_and_highest_overhead() -> None:
    timed = {4: 20.0, 5: 30.0, 6: 40.0}
    assert hosts_timed(FakeWhatIf(device=25, is_cpu=True), 25.0, timed) == 1250
    mixed = FakeWhatIf(device=25, is_cpu=True)
    mixed.timeline.tracks.append(SimpleNamespace(is_cpu=False))
    assert hosts_timed(mixed, 20.0, timed) > 1250
    assert hosts_timed(FakeWhatIf(5000, device=25), 25.0, dict.fromkeys(timed, 0.0)) == 5000
    assert hosts_timed(FakeWhatIf(6000, device=25), 25.0, dict.fromkeys(timed, 0.0)) == 6000


def test_host_work_is_limited_throughout_the_step() -> None:
    """Over two steps, process 0 works for 30 and 10 ns, process 1 for 100 ns, and process 3 does not work."""
    graph = graph_of(host_of(process=[0, 0, 1, 3]), steps=2)
    busy = np.array([30.0, 10, 100, 0])
    assert limited_to(graph, busy, {0: 10, 1: 60, 3: 5}).tolist() == [15, 5, 100, 0]
    assert limited_to(graph, busy, {1: 40}).tolist() == [30, 10, 80, 0]
    assert limited_to(graph, busy, {0: 20, 1: 50}) is busy
    assert limited_to(graph, busy, {}) is busy
    assert limited_to(graph, busy, {0: 0}).tolist() == [0, 0, 100, 0]


@pytest.mark.parametrize(("corrected", "taken"), [(97.0, True), (96.9, False)])
def test_each_host_is_limited_unless_the_step_becomes_too_short(corrected: float, *, taken: bool) -> None:
    """The limit is not applied if it shortens the step of 100 ms by more than 3 %."""
    asked: dict[int, float] = {}

    def with_host_limits(max_host_ns: dict[int, float]) -> Any:
        asked.update(max_host_ns)
        return SimpleNamespace(corrected_ms=corrected)

    of: Any = FakeWhatIf(device=25)
    of.with_host_limits = with_host_limits
    limited = limit_each_host(of, 100.0, {4: 20.0, 6: 30.0, 9: 1.0})
    assert (limited is not of) == taken
    assert asked == {0: 20.0 * NS_PER_MS, 2: 30.0 * NS_PER_MS}
    on_cpu: Any = FakeWhatIf(device=25, is_cpu=True)
    on_cpu.with_host_limits = with_host_limits
    assert limit_each_host(on_cpu, 100.0, {4: 20.0}) is on_cpu


def test_host_limits_apply_at_any_overhead() -> None:
    """A host that works for 60 ms in two steps is limited to 20 ms per step."""
    trace = TraceBuilder().steps(
        4, 100_000, lambda trace: trace.operator(0, 30_000).compute(100, 90_000, launch=(50, 60))
    )
    graph = build_graph(build_timeline([trace.build()]))
    assert graph is not None
    what_if = WhatIf(JobModel(graph, build_timeline([trace.build()])), 0.0)
    limited = what_if.with_host_limits({0: 20 * NS_PER_MS})
    assert what_if.corrected.busy.sum() > 2 * 20 * NS_PER_MS
    assert limited.corrected.busy.sum() == pytest.approx(2 * 20 * NS_PER_MS)
    assert limited.at_cost(0.0).corrected.busy.sum() == limited.corrected.busy.sum()
    assert what_if.at_cost(0.0).corrected.busy.sum() == what_if.corrected.busy.sum()
