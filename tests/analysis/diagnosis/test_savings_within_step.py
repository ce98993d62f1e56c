"""Test that no finding saves more than the reported step, whatever the recording or the run record contains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.analysis.attribution import attribute
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.engine import diagnose
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf, build_what_if
from gpudiag.analysis.timeline import build_timeline
from gpudiag.app.stages import analysis_of_traces
from gpudiag.report.header import real_step_ms
from gpudiag.report.verdict import saves
from tests.analysis.diagnosis.test_rules_by_hand import timed
from tests.builders import analysis, device
from tests.timeline_builder import TraceBuilder

if TYPE_CHECKING:
    from gpudiag.analysis.diagnosis.simulation.graph import Scenario
    from gpudiag.model.event import Trace
    from gpudiag.model.timeline import Timeline


def late_input() -> Trace:
    """Make steps of 100 ms in which the host waits 95 ms for input."""
    return (
        TraceBuilder(unit_ns=1_000_000)
        .steps(8, 100, lambda trace: trace.loader(0, 95).operator(95, 99).compute(96, 99, launch=(95, 96)))
        .build()
    )


def nothing_left(costs: Scenario) -> Scenario:
    """Return the scenario of a job that does nothing."""
    return replace(
        costs,
        busy=np.zeros_like(costs.busy),
        waiting=np.zeros_like(costs.waiting),
        duration=np.zeros_like(costs.duration),
        gap=np.zeros_like(costs.gap),
    )


def what_if_of(timeline: Timeline, unprofiled_ms: float | None = None, recorded_ms: float | None = None) -> WhatIf:
    made = build_what_if(timeline, unprofiled_ms, recorded_ms=recorded_ms)
    assert made is not None
    return made


@pytest.mark.parametrize("share", [0.01, 0.5, 0.993, 0.999, 1.0])
def test_nothing_saves_more_than_the_unprofiled_step(share: float) -> None:
    timeline = build_timeline([late_input()])
    step_ms = what_if_of(timeline).corrected_ms
    made = what_if_of(timeline, share * step_ms)
    assert made.max_saving_ms == pytest.approx(share * step_ms)
    assert 0 < made.saving_ms(nothing_left(made.corrected)) <= share * step_ms


def test_nothing_saves_more_than_the_recorded_step_if_the_simulated_step_is_longer() -> None:
    timeline = build_timeline([late_input()])
    free = what_if_of(timeline)
    assert free.saving_ms(nothing_left(free.corrected)) == pytest.approx(free.corrected_ms)
    held = what_if_of(timeline, recorded_ms=0.8 * free.corrected_ms)
    assert held.saving_ms(nothing_left(held.corrected)) == held.estimated_ms == 0.8 * free.corrected_ms
    assert held.at_cost(0.0).recorded_ms == held.recorded_ms


def test_findings_save_no_more_than_the_shortest_step_that_the_data_allow() -> None:
    """Input takes 95 ms of the recorded step, but the simulated step is longer than the recorded step."""
    timeline = build_timeline([late_input()])
    case = Case(timeline=timeline, attribution=attribute(timeline))
    free = case.what_if
    assert free is not None
    (before,) = [finding for finding in diagnose(case).findings if finding.code == "input-bound"]
    case.__dict__["what_if"] = what_if_of(timeline, recorded_ms=(before.recoverable_ms_per_step or 0.0) * 0.9)
    (after,) = [finding for finding in diagnose(case).findings if finding.code == "input-bound"]
    assert before.recoverable_ms_per_step is not None
    assert after.recoverable_ms_per_step == pytest.approx(0.9 * before.recoverable_ms_per_step)
    assert (after.recoverable_percent or 0.0) <= 100.0
    assert f"{after.recoverable_ms_per_step:.1f} ms" in after.title


def test_savings_are_limited_if_steps_of_devices_differ_by_a_factor_of_1000() -> None:
    """A damaged trace had 38 devices, most of which were busy for microseconds of a step of 11 ms."""
    builder = TraceBuilder(unit_ns=1000)
    for step in range(4):
        builder.step(step * 12_000).operator(0, 20)
        for ordinal in range(1, 30):
            if step == 1:
                builder.on(ordinal).compute(20 + 100 * ordinal, 40 + 100 * ordinal, launch=(5, 6))
        builder.on(0).compute(20, 9_000, launch=(3, 4)).collective(9_000, 11_400, launch=(7, 8))
    analysis = analysis_of_traces([builder.build()], [], world_size=None, unused=()).analysis
    assert analysis.findings
    assert any((finding.recoverable_ms_per_step or 0.0) > analysis.steps.mean_ms for finding in analysis.findings), (
        "savings are not limited by the mean step of all devices"
    )
    for finding in analysis.findings:
        assert (finding.recoverable_ms_per_step or 0.0) <= real_step_ms(analysis)
        assert 0.0 <= (finding.recoverable_percent or 0.0) <= 100.0


def test_input_of_unprofiled_steps_saves_no_more_than_they_take() -> None:
    """A damaged record has input waits of 150 ms in steps of 100 ms."""
    (finding,) = timed([150.0] * 9, step_ms=100.0)
    assert (finding.recoverable_ms_per_step, finding.recoverable_percent) == (100.0, 100.0)
    assert finding.evidence["step_ms_if_fixed"] == 0.0
    assert "(100 %)" in saves(finding, analysis(device(0, compute=100.0)))
