"""Test the first lines of a report: job, devices, step time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpudiag.model.analysis import Analysis, Finding, Steps
from gpudiag.report.figures import TIMES
from gpudiag.report.header import recorded_steps_note, step_line, what_ran
from gpudiag.report.page.render import report
from gpudiag.report.text.run import to_markdown
from gpudiag.report.verdict import verdict_of
from tests import builders
from tests.report.consoles import drawn


def job(name: str = "NVIDIA H200", ordinal: str = "", steps: Steps | None = None, **fields: Any) -> Analysis:
    given = {} if steps is None else {"steps": steps}
    return builders.analysis(builders.device(0, name, ordinal=ordinal, compute=8.0, idle=2.0), **given, **fields)


@pytest.mark.parametrize(
    ("analysis", "expected"),
    [
        (job(workload="training"), f"PyTorch training · 1 {TIMES} NVIDIA H200"),
        (job(workload="inference"), f"PyTorch inference · 1 {TIMES} NVIDIA H200"),
        (job(), f"PyTorch recording · 1 {TIMES} NVIDIA H200"),
        (job(framework="jax", name=""), f"JAX recording · 1 {TIMES} GPU"),
        (job(framework="unknown"), f"Recording · 1 {TIMES} NVIDIA H200"),
        (job(framework="unknown", workload="training"), f"Training · 1 {TIMES} NVIDIA H200"),
        (job(name="", device_kind="cpu", workload="training"), f"PyTorch training · 1 {TIMES} CPU process"),
        (job(name="", ordinal="cpu"), f"PyTorch recording · 1 {TIMES} CPU process"),
        (job(name="MTIA", device_kind="unread"), f"PyTorch recording · 1 {TIMES} MTIA (not read)"),
        (job(name="", ordinal="cpu", device_kind="unread"), f"PyTorch recording · 1 {TIMES} accelerator (not read)"),
    ],
)
def test_first_line_names_framework_kind_of_work_and_devices(analysis: Analysis, expected: str) -> None:
    assert what_ran(analysis) == expected
    assert drawn(analysis, 100).startswith(f"{expected}\n")


def test_report_of_cpu_job_or_unread_device_mentions_no_gpu() -> None:
    for analysis in (job(name="", ordinal="cpu", device_kind="cpu"), job(name="TPU", device_kind="unread")):
        assert "GPU" not in drawn(analysis, 100, full=True)
        assert "GPU" not in to_markdown(analysis)


def test_every_report_says_that_only_a_sample_of_the_ranks_was_simulated() -> None:
    whole = builders.many_ranks(128)
    sampled = replace(whole, simulated_ranks=tuple(range(40)))
    line = "Simulated on 40 of 128 ranks: those that differ, and an even sample"
    for write in (_short, _full, to_markdown, _page):
        assert write(sampled).count(line) == 1
        assert "Simulated on" not in write(whole)


def _short(analysis: Analysis) -> str:
    return drawn(analysis, 80)


def _full(analysis: Analysis) -> str:
    return drawn(analysis, 80, full=True)


def _page(analysis: Analysis) -> str:
    return report(analysis=analysis)


def test_unread_accelerator_gets_no_verdict() -> None:
    likely = Finding(code="host-stall", severity="critical", title="likely cause: a device that idles")
    title = verdict_of(job(name="MTIA", device_kind="unread", findings=(likely,))).title
    assert title == "No verdict: gpudiag cannot read the activity of MTIA, so only host time is known."


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (Steps(analysed=6, mean_ms=10.0, median_ms=10.0), "Step 10.0 ms while profiling · mean of 6 steps"),
        (Steps(analysed=1, mean_ms=10.0, median_ms=10.0), "Step 10.0 ms while profiling · 1 step"),
        (
            Steps(analysed=6, mean_ms=684.1, median_ms=684.1, corrected_mean_ms=423.0),
            "Step about 423.0 ms (estimated; 684.1 ms while profiling, mean over devices) · mean of 6 steps",
        ),
        (
            Steps(analysed=6, mean_ms=199.0, median_ms=199.0, corrected_mean_ms=150.0, unprofiled_mean_ms=19.9),
            "Step 19.9 ms (199.0 ms while profiling, mean over devices) · mean of 6 steps",
        ),
        (
            Steps(analysed=12, mean_ms=1.5, median_ms=1.5, unit="repeated-unit", covered_percent=12.2),
            (
                "Repeated unit 1.50 ms while profiling, mean over devices · mean of 12 repeated units · "
                "covers 12 % of the recorded device time"
            ),
        ),
        (
            Steps(analysed=1, mean_ms=340.0, median_ms=340.0, unit="recording", covered_percent=100.0),
            "Recording 340.0 ms while profiling, mean over devices",
        ),
    ],
)
def test_step_line_begins_with_unprofiled_step_and_ends_with_coverage(steps: Steps, expected: str) -> None:
    assert step_line(job(steps=steps)).plain == expected


def test_at_most_two_step_times_precede_the_verdict() -> None:
    analysis = replace(builders.late_loader(), recording=None)
    head = drawn(analysis, 100).partition("CRITICAL")[0]
    assert head.count(" ms") == 2


def test_note_says_that_bars_show_recorded_steps_if_these_differ() -> None:
    slow = Steps(analysed=6, mean_ms=199.0, median_ms=199.0, unprofiled_mean_ms=19.9)
    expected = "Bars and table show recorded steps of 199.0 ms; without the profiler a step takes 19.9 ms."
    assert recorded_steps_note(job(steps=slow)) == expected
    assert expected in drawn(job(steps=slow), 120, full=True)
    assert expected in to_markdown(job(steps=slow))
    assert f"Bars: recorded steps, 10.0 {TIMES} as long as without the profiler." in drawn(job(steps=slow), 120)
    near = Steps(analysed=6, mean_ms=20.9, median_ms=20.9, unprofiled_mean_ms=19.9)
    assert recorded_steps_note(job(steps=near)) == ""


@pytest.mark.parametrize(
    ("unit", "heading"),
    [
        ("step", "Where a step's time goes"),
        ("repeated-unit", "Where a repeated unit's time goes"),
        ("recording", "Where the recording's time goes"),
    ],
)
def test_headings_name_the_unit(unit: Any, heading: str) -> None:
    analysis = job(steps=Steps(analysed=3, mean_ms=10.0, median_ms=10.0, unit=unit))
    assert f"\n{heading}\n" in drawn(analysis, 100, full=True)
    assert f"## {heading}\n" in to_markdown(analysis)
