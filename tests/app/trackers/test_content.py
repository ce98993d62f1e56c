"""Test what is logged to trackers, and the refusals of `gpudiag log`."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

import gpudiag
from gpudiag.app.trackers.content import COLUMNS, metrics_of, tracked_run
from gpudiag.errors import UsageError
from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.model.run import ComputeRate
from gpudiag.training.loop.trackers.log_later import LogLater
from gpudiag.training.loop.trackers.tracked_run import TRACKERS
from tests.cli_process import in_this_process

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "traces" / "gloo_dataloader"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return gpudiag.analyze(TRACES)


def test_buckets_sum_to_the_recorded_step_and_unknown_figures_are_left_out(analysis: Analysis) -> None:
    metrics = metrics_of(analysis)
    mean_ms = sum(device.step_ms for device in analysis.devices) / len(analysis.devices)
    assert math.isclose(sum(metrics[f"gpudiag/{bucket}_ms"] for bucket in BUCKETS), mean_ms)
    assert metrics["step_time_ms"] == analysis.steps.corrected_mean_ms
    assert not {"tflops", "mfu", "samples_per_s"} & set(metrics)


def test_throughput_and_utilization_are_logged_where_known(analysis: Analysis) -> None:
    rate = ComputeRate(tflops_per_s=12.5, mfu_percent=40.0)
    source = msgspec.structs.replace(analysis.source, samples_per_s=640.0)
    metrics = metrics_of(msgspec.structs.replace(analysis, compute=rate, source=source))
    assert (metrics["tflops"], metrics["mfu"], metrics["samples_per_s"]) == (12.5, 40.0, 640.0)


def test_findings_are_metrics_and_rows(analysis: Analysis) -> None:
    first = analysis.findings[0]
    metrics = metrics_of(analysis)
    assert metrics[f"gpudiag/saves/{first.code}_ms"] == first.recoverable_ms_per_step
    assert metrics["gpudiag/findings_critical"] == 2
    tracked = tracked_run(analysis, Path("some run"), Path("report.html"))
    assert tracked.name == "some-run"
    row = dict(zip(COLUMNS, tracked.rows[0], strict=True))
    assert (row["code"], row["title"], row["saves_ms"]) == (first.code, first.title, first.recoverable_ms_per_step)
    assert len(tracked.rows) == len(analysis.findings)


def test_documentation_lists_every_metric(analysis: Analysis) -> None:
    page = (ROOT / "docs" / "commands" / "log.md").read_text(encoding="utf-8")
    general = {name for name in metrics_of(analysis) if not name.startswith("gpudiag/saves/")}
    for name in {*general, "tflops", "mfu", "samples_per_s", "gpudiag/saves/<code>_ms"}:
        assert f"`{name}`" in page, name
    assert all(f"`{name}`" in page for name in TRACKERS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "wanbd"), "--to knows no 'wanbd'\n  hint: Did you mean 'wandb'?"),
        (("--to", "tensorboard", "--run-id", "1"), "--project and --run-id are for wandb and mlflow"),
        (("--to", "mlflow", "--directory", "runs"), "--directory is for tensorboard"),
    ],
)
def test_wrong_options_are_refused_before_any_work(words: tuple[str, ...], message: str) -> None:
    done = in_this_process("log", "missing", *words)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("tracker", "library"), [("wandb", "W&B (wandb)"), ("mlflow", "MLflow")])
def test_a_missing_library_is_two_lines(
    tracker: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{tracker}.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    done = in_this_process("log", str(TRACES), "--to", tracker)
    assert done.returncode == 2
    message, hint = done.stderr.splitlines()
    assert message == f"gpudiag: {library} is not installed"
    assert hint == f"  hint: Install it (in a clone: pip install '.[{tracker}]')."


def test_callbacks_refuse_unknown_trackers() -> None:
    with pytest.raises(UsageError, match="log_to knows no 'comet'"):
        LogLater(("wandb", "comet"))
