"""Test `gpudiag profile --framework tensorflow` on real GPUs.

    GPUDIAG_TENSORFLOW_PYTHON=/path/to/python pytest tests/gpu/test_tensorflow_gpu.py -m multigpu

The tests take about three minutes on 4 GPUs. The interpreter needs tensorflow[and-cuda] and msgspec.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from tests.training.jobs.tensorflow_python import tensorflow_python

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
needs_gpus = pytest.mark.skipif(GPUS < 2, reason="there are not two NVIDIA GPUs")
DEVICES = min(GPUS, 4)
ROOT = Path(__file__).parents[2]


def profile(run_dir: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a job to its end; return its analysis and run record."""
    options = ("--framework", "tensorflow", "--python", tensorflow_python(), "--no-probe", "--json")
    command = [sys.executable, "-m", "gpudiag", "profile", "resnet50", *options, *words, "--output", str(run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (run_dir / "logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return json.loads(done.stdout), json.loads((run_dir / "run.json").read_text(encoding="utf-8"))


@pytest.mark.multigpu
@needs_gpus
@pytest.mark.parametrize("strategy", ["nccl", "hierarchical-copy", "cpu-reduce", "one-device", "multi-worker"])
def test_every_gpu_is_a_rank(tmp_path: Path, strategy: str) -> None:
    words = ("--strategy", strategy, "--devices", str(DEVICES), "--steps", "20", "--warmup", "5")
    analysis, run = profile(tmp_path, *words)
    assert run["status"] == "complete"
    assert {"cuda", "cudnn", "driver", "keras"} <= set(run["software"])
    assert [device["rank"] for device in analysis["devices"]] == list(range(DEVICES))
    for device in analysis["devices"]:
        assert sum(device["buckets_ms"].values()) == pytest.approx(device["step_ms"], rel=1e-6)
        assert device["buckets_ms"]["compute"] > 0.3 * device["step_ms"]
    steps = analysis["steps"]
    assert steps["corrected_mean_ms"] == pytest.approx(steps["unprofiled_mean_ms"], rel=0.15)
    reduced = [collective for collective in analysis["collectives"] if collective["operation"] == "all_reduce"]
    if strategy in {"nccl", "multi-worker"}:
        assert reduced
        assert {kind["ranks"] for kind in reduced} == {DEVICES}
    else:
        assert not reduced, "gradients are copied, no NCCL kernel runs"
