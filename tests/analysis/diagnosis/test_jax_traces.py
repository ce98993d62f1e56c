"""Test the diagnoses of real recordings of JAX, each of which has one known cost (`tests/traces/record_jax.py`)."""

from __future__ import annotations

import json
import re

import pytest

from gpudiag.app.analyze import analyze
from gpudiag.model.analysis import Analysis
from tests.report.consoles import drawn
from tests.trace.documents import TRACES

#: Terms of other frameworks, and of devices that a CPU-only recording does not have.
FOREIGN = re.compile(r"TensorFlow|gpudiag profile|\btf\.|tf_|torch|DDP|DataLoader|\bGPUs?\b|CUDA|CUPTI", re.IGNORECASE)


def analysis_of(name: str) -> Analysis:
    return analyze([TRACES / "jax" / f"{name}.xplane.pb.gz"])


@pytest.mark.parametrize(
    ("name", "code", "place", "advice"),
    [
        ("slow_input", "input-bound", "decode_images", "jax.device_put"),
        ("many_operations", "launch-bound", "61 functions per step", "one jax.jit"),
        ("recompiled", "recompilation", "", "jax_log_compiles"),
    ],
)
def test_first_finding_is_the_known_cost(name: str, code: str, place: str, advice: str) -> None:
    first = analysis_of(name).findings[0]
    assert first.code == code
    assert place in first.place
    assert any(advice in line for line in first.advice)


def test_compiling_in_each_step_is_counted() -> None:
    evidence = analysis_of("recompiled").findings[0].evidence
    assert evidence["compilations_per_step"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("name", ["clean", "unmarked", "runs_ahead"])
def test_healthy_recording_is_compute_bound(name: str) -> None:
    findings = analysis_of(name).findings
    assert findings[0].code == "compute-bound"
    assert all((finding.recoverable_percent or 0.0) < 5 for finding in findings)


def test_collectives_of_cpu_devices_are_communication() -> None:
    analysis = analysis_of("data_parallel")
    assert [collective.operation for collective in analysis.collectives] == ["all_reduce"]
    assert analysis.world_size == 4
    for device in analysis.devices:
        assert device.buckets_ms["communication_transfer"] > 0
    assert "communication-bound" in {finding.code for finding in analysis.findings}


def test_host_ahead_of_its_device_is_no_idle_device() -> None:
    (device,) = analysis_of("runs_ahead").devices
    assert device.buckets_ms["compute"] > 0.95 * device.step_ms


def test_unmarked_steps_are_reported() -> None:
    analysis = analysis_of("unmarked")
    assert analysis.steps.analysed == 6
    (message,) = [warning.message for warning in analysis.validity if warning.code == "no-step-marks"]
    assert "jax.profiler.StepTraceAnnotation" in message


@pytest.mark.parametrize(
    "name", ["clean", "slow_input", "many_operations", "data_parallel", "recompiled", "unmarked", "runs_ahead"]
)
def test_report_has_only_words_of_jax_and_cpus(name: str) -> None:
    analysis = analysis_of(name)
    report = drawn(analysis, 100, full=True)
    assert report.startswith("JAX training")
    assert FOREIGN.findall(report) == []


GPUS = TRACES / "jax_h200"
STEP_MS: dict[str, float] = json.loads((GPUS / "truth.json").read_text())["median_step_ms"]


def savings_on_gpus(name: str) -> dict[str, float]:
    """Return the savings per step in ms by finding, of a recording on GPUs."""
    findings = analyze([GPUS / f"{name}.xplane.pb.gz"]).findings
    return {finding.code: finding.recoverable_ms_per_step or 0.0 for finding in findings}


def test_exposed_all_reduce_costs_the_difference_to_one_device() -> None:
    savings = savings_on_gpus("exchange_2")
    assert next(iter(savings)) == "communication-bound"
    assert savings["communication-bound"] == pytest.approx(STEP_MS["exchange_2"] - STEP_MS["exchange_1"], rel=0.15)
    assert "communication-bound" not in savings_on_gpus("exchange_1")


def test_copy_of_the_batch_that_a_step_waits_for_is_input() -> None:
    savings = savings_on_gpus("clean_1")
    assert next(iter(savings)) == "input-bound"
    # Only the copy in host memory counts, 5.0 of 11 ms. The profile shows it as `H2D Dispatch` of another thread.
    assert savings["input-bound"] == pytest.approx(5.0, abs=0.3)
