"""Test that findings about host speed are reported only if chance and profiler overhead cannot explain them."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from gpudiag.analysis.diagnosis.calibration import PROFILER_NS_PER_EVENT
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.significance import Significance, interval_ms
from gpudiag.analysis.diagnosis.simulation.job_model import JobModel
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from tests.analysis.diagnosis.cases import case_of
from tests.analysis.diagnosis.random_jobs.analysed import recorded
from tests.analysis.diagnosis.random_jobs.recipe import draw
from tests.analysis.diagnosis.records import run_of
from tests.analysis.diagnosis.rule_examples.jobs import Job, fetch, kernels
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.case import Case

#: Number of random jobs.
JOBS = 20
#: 100 kernels take 10 ms and their launches 11 ms, so the host determines the step time by a tenth.
SLIGHTLY_BOUND = Job(ranks=1, step=(kernels(10, count=100, launch_us=110),), steps=10)


def findings_and_warnings(case: Case) -> tuple[set[str], dict[str, str]]:
    diagnosis = diagnose(case)
    findings, doubts = diagnosis.findings, diagnosis.validity
    return {finding.code for finding in findings}, {doubt.code: doubt.message for doubt in doubts}


def timed(job: Job, *, slow_times: float) -> Case:
    """Return the job with unprofiled steps, one of eight slower; their mean equals the recorded step."""
    case = case_of(job.traces())
    times = [1.0] * 70 + [slow_times] * 10
    scale = case.slowest_ms / statistics.fmean(times)
    return run_of(case, [scale * time for time in times])


def test_small_finding_is_reported_if_steps_scatter_little() -> None:
    codes, doubts = findings_and_warnings(timed(SLIGHTLY_BOUND, slow_times=1.02))
    assert "launch-bound" in codes
    assert "cannot-tell:launch-bound" not in doubts


def test_loss_in_few_steps_is_no_finding() -> None:
    codes, doubts = findings_and_warnings(timed(SLIGHTLY_BOUND, slow_times=1.8))
    assert not codes & {"launch-bound", "compute-bound"}, (
        "the job must be called neither launch-bound nor compute-bound"
    )
    assert "chance" in doubts["cannot-tell:launch-bound"]


def with_events(case: Case, per_node: int) -> Case:
    """Return the case as if `per_node` events had been recorded before each launch."""
    what_if = case.what_if
    assert what_if is not None
    host = msgspec.structs.replace(what_if.graph.host, events=np.full(len(what_if.graph.host.time), per_node))
    graph = msgspec.structs.replace(what_if.graph, host=host)
    again = replace(case)
    object.__setattr__(again, "what_if", WhatIf(JobModel(graph, case.timeline)))
    return again


@pytest.mark.parametrize(("launch_us", "found"), [(250.0, True), (160.0, False)])
def test_savings_within_profiler_overhead_are_no_finding(launch_us: float, *, found: bool) -> None:
    """100 launches have 40 events each: the profiler costs 5.1 ms, and 6.6 ms if its overhead is 30 % higher."""
    case = with_events(
        case_of(Job(ranks=1, step=(kernels(10, count=100, launch_us=launch_us),), steps=10).traces()), 40
    )
    assert case.what_if is not None
    assert case.what_if.corrected_ms == pytest.approx(launch_us / 10 - 40 * PROFILER_NS_PER_EVENT / 1e4, rel=0.02)
    codes, doubts = findings_and_warnings(case)
    assert ("launch-bound" in codes) == found
    assert ("cannot-tell:launch-bound" in doubts) == (not found)


def test_remaining_savings_must_survive_higher_overhead() -> None:
    job = Job(ranks=1, step=(fetch(15), kernels(10, count=100, launch_us=168)), steps=10)
    without_profiler_ms = 15 + 100 * (0.168 - 40 * PROFILER_NS_PER_EVENT / 1e6)
    codes, doubts = findings_and_warnings(with_events(run_of(case_of(job.traces()), [without_profiler_ms] * 20), 40))
    assert "input-bound" in codes
    assert "launch-bound" not in codes
    assert "otherwise, at the estimated 1.3 µs, " in doubts["cannot-tell:launch-bound"]


def interval_of(case: Case) -> tuple[float, float]:
    assert case.what_if is not None
    interval = interval_ms(Significance(case, case.what_if))
    assert interval is not None
    return interval


@pytest.mark.long
@pytest.mark.parametrize("is_timed", [False, True])
def test_interval_contains_the_true_step_of_random_jobs(*, is_timed: bool) -> None:
    held, halves = 0, []
    for seed in range(JOBS):
        recipe = msgspec.structs.replace(draw(seed), timed=is_timed)
        low, high = interval_of(recorded(recipe))
        true_ms = statistics.fmean(recipe.job(recorded=False).step_times_ms())
        held += low <= true_ms <= high
        halves.append((high - low) / 2 / true_ms)
    assert held >= 0.95 * JOBS
    # Without unprofiled steps, hosts may be a third slower or faster at other times.
    assert statistics.median(halves) < (0.1 if is_timed else 0.3), "the interval is too wide"


def test_interval_includes_faster_unprofiled_steps() -> None:
    """The device took 10 ms of each recorded step and 7 ms of unprofiled steps, which no profiler overhead explains."""
    case = case_of(Job(ranks=1, step=(kernels(10, count=100, launch_us=20),), steps=10).traces())
    low, high = interval_of(run_of(case, [7.0, 7.1, 6.9, 7.0, 7.05, 6.95]))
    assert 6.5 < low <= 7.0
    assert high >= 10.0


def test_interval_covers_half_and_twice_the_overhead() -> None:
    case = with_events(case_of(Job(ranks=1, step=(kernels(10, count=100, launch_us=250.0),), steps=10).traces()), 40)
    low, high = interval_of(case)
    recorded_ms, cost_ms = 25.0, 40 * PROFILER_NS_PER_EVENT / 1e4
    assert low < recorded_ms - 2 * cost_ms
    # The host alone determines the step time, and at other times it may be 1.3 times as slow.
    assert recorded_ms - cost_ms / 2 < high < 1.3 * recorded_ms


def cpu_ranks(scatter_us: int) -> Case:
    """Make two CPU processes with steps of 20 ms that are alternately longer and shorter by `scatter_us`."""
    ranks = [TraceBuilder(rank, world_size=2) for rank in range(2)]
    for trace in ranks:
        at = 0
        for step in range(8):
            trace.step(at).operator(100, 15_000, "aten::mm").operator(15_100, 15_200, "c10d::allreduce_")
            trace.gloo(15_150, 17_000, thread=91, ranks=(0, 1)).operator(17_010, 18_000, "aten::copy_")
            at += 20_000 + (scatter_us if step % 2 else -scatter_us)
    return case_of([trace.build() for trace in ranks])


def test_interval_of_cpu_processes_covers_drift() -> None:
    quiet, busy = interval_of(cpu_ranks(20)), interval_of(cpu_ranks(1_000))
    assert (quiet[1] - quiet[0]) / 2 < 0.1 * 20
    assert busy[0] < 0.8 * 20
    assert busy[1] > 1.25 * 20
