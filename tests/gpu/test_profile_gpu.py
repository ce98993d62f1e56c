"""Test `gpudiag profile` on real GPUs.

    pytest tests/gpu/test_profile_gpu.py -m "gpu or multigpu"

The tests take about four minutes on 4 GPUs. The tests compare step times with each other, never with a fixed value.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpudiag.machine.inventory.gather import gather_inventory

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="there is no NVIDIA GPU")
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="there are not two NVIDIA GPUs")
DEVICES = min(GPUS, 4)
ROOT = Path(__file__).parents[2]
#: The batch must be large enough that the GPU limits the step: with 64 images, a slow host limits ResNet-50.
LARGE_BATCH = ("--batch-size", "256")


def start(run_dir: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpudiag", "profile", *words, "--output", str(run_dir), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def profile(run_dir: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a job to its end; return its analysis and run record."""
    program = start(run_dir, *words)
    stdout, stderr = program.communicate(timeout=280)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (run_dir / "logs").glob("*.log"))
    assert program.returncode == 0, f"{stderr}\n{logs}"
    analysis, run = json.loads(stdout), json.loads((run_dir / "run.json").read_text())
    assert run["status"] == "complete"
    for device in analysis["devices"]:
        assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"], rel=1e-6)
    return analysis, run


def on_gpu(run: dict[str, Any], ranks: int) -> None:
    assert [rank["device"] for rank in run["ranks"]] == [f"cuda:{rank}" for rank in range(ranks)]
    assert {"cuda", "cudnn", "nccl", "driver"} <= set(run["software"])
    assert all(rank["warmup"]["settled"] for rank in run["ranks"])


@pytest.mark.gpu
@needs_gpu
def test_one_gpu_with_default_options(tmp_path: Path) -> None:
    form = ("--precision", "bf16", "--memory-format", "nhwc")
    analysis, run = profile(tmp_path, "resnet50", "--devices", "1", *LARGE_BATCH, *form)
    on_gpu(run, 1)
    assert run["options"]["precision"] == "bf16"
    assert run["options"]["memory_format"] == "nhwc"
    assert analysis["devices"][0]["buckets_ms"]["compute"] > 0


@pytest.mark.multigpu
@needs_gpus
@pytest.mark.parametrize("words", [("resnet50", *LARGE_BATCH), ("gpt",)], ids=lambda words: words[0])
def test_recorded_step_equals_unprofiled_step_if_the_device_limits_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    analysis, run = profile(tmp_path, *words, "--strategy", "nccl", "--devices", str(DEVICES), "--data", "device")
    on_gpu(run, DEVICES)
    assert (run["strategy"], analysis["ranks_present"]) == ("nccl", list(range(DEVICES)))
    assert sum(run["model"]["gradient_sizes"]) == run["model"]["gradient_bytes"]
    assert len(run["model"]["gradient_sizes"]) > 1
    unprofiled = [rank["unprofiled"]["median_ms"] for rank in run["ranks"]]
    assert max(unprofiled) == pytest.approx(min(unprofiled), rel=0.05)
    assert analysis["steps"]["median_ms"] == pytest.approx(max(unprofiled), rel=0.1)


@pytest.mark.multigpu
@needs_gpus
def test_communication_is_slower_without_peer_access(tmp_path: Path) -> None:
    """`mlp` communicates 165 MB per step and computes little, so communication dominates its step."""
    words = ("mlp", "--devices", str(DEVICES), "--data", "device")
    _, fast = profile(tmp_path / "p2p", *words)
    _, slow = profile(tmp_path / "no-p2p", *words, "--no-p2p")
    assert slow["options"]["p2p"] == "off"
    medians = [run["ranks"][0]["unprofiled"]["median_ms"] for run in (fast, slow)]
    if os.environ.get("NCCL_P2P_DISABLE") != "1":
        assert medians[0] < medians[1]


@pytest.mark.multigpu
@needs_gpus
def test_independent_steps_are_the_shortest(tmp_path: Path) -> None:
    words = ("mlp", "--devices", str(DEVICES), "--data", "device")
    _, alone = profile(tmp_path / "independent", *words, "--strategy", "independent")
    _, gloo = profile(tmp_path / "gloo", *words, "--strategy", "gloo", "--steps", "10", "--warmup", "5")
    assert alone["model"]["parameters"] == gloo["model"]["parameters"]
    assert alone["ranks"][0]["unprofiled"]["median_ms"] < gloo["ranks"][0]["unprofiled"]["median_ms"]


@pytest.mark.multigpu
@needs_gpus
def test_a_worker_killed_under_nccl_ends_the_run_within_seconds(tmp_path: Path) -> None:
    program = start(tmp_path, "resnet50", "--devices", str(DEVICES), "--steps", "1000000", "--data", "device")
    records = [tmp_path / "ranks" / f"rank{rank}.json" for rank in range(DEVICES)]
    until = time.monotonic() + 120
    while not all(path.exists() and json.loads(path.read_text())["warmup"] for path in records):
        assert program.poll() is None, program.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(json.loads(records[1].read_text())["pid"], signal.SIGKILL)
    _, stderr = program.communicate(timeout=30)
    assert program.returncode == 5
    assert "rank 1 was ended by SIGKILL" in stderr
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["status"] == "failed"
    assert all(rank["warmup"] for rank in run["ranks"])


@pytest.mark.gpu
@needs_gpu
def test_too_many_devices_are_refused(tmp_path: Path) -> None:
    program = start(tmp_path / "run", "--devices", "4096")
    assert program.communicate(timeout=60)[0] == ""
    assert program.returncode == 3
    assert not (tmp_path / "run").exists()
