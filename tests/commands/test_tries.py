"""Test `gpudiag profile --try` with two processes on CPUs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli_process import gpudiag, in_this_process
from tests.forked_jobs import with_forked_jobs

OWN = "tests.commands.own_training"
ROOT = Path(__file__).parents[2]
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def tries_of(result: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return {row["change"]: row for row in json.loads(result.stdout)["tries"]}


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
@pytest.mark.apart
def test_users_function_is_trained_with_each_change_that_it_has(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = with_forked_jobs(
        *("profile", f"{OWN}:changeable", "--try", "fused,compile,tf32", "--steps", "4", "--warmup", "3"),
        *("--output", str(run_dir), "--json"),
        cwd=ROOT,
        **NO_GPU,
    )
    tries = tries_of(result)
    assert list(tries) == ["fused", "compile", "tf32"]
    fused = tries["fused"]
    assert fused["verdict"] == "faster", "a step sleeps 12 ms, and 4 ms with the change"
    low, high = fused["ci95_ms"]
    assert low < fused["measured_ms"] < high
    assert fused["base_ms"] - fused["changed_ms"] == pytest.approx(fused["measured_ms"])
    assert tries["compile"]["verdict"] == "skipped"
    assert tries["compile"]["reason"] == f"{OWN}:changeable has no argument 'compile'"
    assert (tries["tf32"]["verdict"], tries["tf32"]["reason"]) == ("skipped", "CPUs have no tf32")
    assert "tf32 is not tried: CPUs have no tf32" in result.stderr
    assert "trying fused by turns with the unchanged job" in result.stderr
    markdown = gpudiag("report", str(run_dir), "--markdown", "-").stdout
    assert "## Tried changes" in markdown
    assert "has no argument 'compile'" in markdown


@pytest.mark.measured
@pytest.mark.xdist_group("processes")
def test_built_in_workload_is_trained_with_changes(tmp_path: Path) -> None:
    result = with_forked_jobs(
        *("profile", "cnn-cifar", "--batch-size", "4", "--try", "channels-last,fused,sdpa", "--steps", "4"),
        *("--warmup", "2"),
        *("--output", str(tmp_path / "run"), "--json"),
        CUDA_VISIBLE_DEVICES="",
    )
    tries = tries_of(result)
    assert tries["sdpa"]["reason"] == "cnn-cifar has no attention"
    assert tries["fused"]["reason"] == "RMSprop has no fused implementation"
    changed = tries["channels-last"]
    assert changed["measured_ms"] is not None, changed
    assert changed["verdict"] in {"faster", "slower", "no-difference"}
    assert changed["predicted_ms"] is None, "savings of kernels are not predicted on CPUs"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            ("resnet50", "--try", "tf23"),
            "--try knows no 'tf23'",
            "There are: tf32, channels-last, fused, sdpa, compile.",
        ),
        (("resnet50", "--try", ","), "--try knows no ''", "There are: tf32"),
        (("resnet50", "--try", "fused", "--framework", "tensorflow"), "--try is not supported for TensorFlow", ""),
        (("unet3d-predict", "--try", "compile"), "--try needs a workload that trains a model", ""),
        (("resnet50", "--model", "none", "--try", "compile"), "--try needs a workload that trains a model", ""),
        (("--try", "fused", "--", "python", "train.py"), "--try does not go with your own command", ""),
    ],
)
def test_impossible_tries_are_usage_errors(options: tuple[str, ...], message: str, hint: str) -> None:
    result = in_this_process("profile", *options)
    assert result.returncode == 2
    assert message in result.stderr
    assert hint in result.stderr
