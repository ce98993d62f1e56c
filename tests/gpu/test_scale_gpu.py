"""Test scaling on real GPUs: steps as fast as a plain loop, repeatable results, and a complete waterfall."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli_process import environment

pytestmark = [pytest.mark.gpu, pytest.mark.multigpu]

ROOT = Path(__file__).parents[2]
SETTING = ("--strategies", "nccl", "--precision", "bf16", "--memory-format", "nhwc", "--no-alone")


def run(*words: str) -> str:
    """Run `python -m WORDS...` in the repository; return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def gpus() -> int:
    torch = pytest.importorskip("torch")
    count: int = torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs two GPUs")
    return count


@pytest.fixture(scope="module")
def scaling(gpus: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("scale")
    text = run("gpudiag", "scale", "resnet50", "--devices", f"1,{gpus}", *SETTING, "--output", str(output), "--json")
    result: dict[str, Any] = json.loads(text)
    return result


def throughput(result: dict[str, Any], devices: int) -> float:
    (value,) = [point["samples_per_s"] for point in result["points"] if point["devices"] == devices]
    return float(value)


def test_step_is_as_fast_as_in_a_plain_loop(scaling: dict[str, Any], gpus: int) -> None:
    out = run("torch.distributed.run", f"--nproc-per-node={gpus}", "benchmarks/bare_ddp.py")
    bare = json.loads(out.strip().splitlines()[-1])["samples_per_s"]
    assert throughput(scaling, gpus) >= 0.97 * bare


def test_repeated_measurement_agrees(scaling: dict[str, Any], gpus: int, tmp_path: Path) -> None:
    words = ("--devices", f"1,{gpus}", *SETTING, "--profile", "none", "--output", str(tmp_path), "--json")
    again = json.loads(run("gpudiag", "scale", "resnet50", *words))
    for devices in (1, gpus):
        assert throughput(again, devices) == pytest.approx(throughput(scaling, devices), rel=0.02)


def test_waterfall_parts_sum_to_the_step(scaling: dict[str, Any]) -> None:
    (fall,) = scaling["waterfalls"]
    lost = {loss["name"]: loss["percent"] for loss in fall["losses"]}
    assert fall["reached_percent"] + sum(lost.values()) == pytest.approx(100, abs=1)
    assert 50 < fall["reached_percent"] < 105
