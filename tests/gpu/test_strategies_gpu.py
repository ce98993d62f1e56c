"""Test strategies between real GPUs: loss curves equal NCCL's, sums through the host are exact, and a dead rank ends
the run.

    pytest tests/gpu/test_strategies_gpu.py -m multigpu

The tests take about two minutes on 4 GPUs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.machine.inventory.gather import gather_inventory
from tests.training.strategies.processes import Job

GPUS = sum(gpu.visible for gpu in gather_inventory().gpus)
DEVICES = min(GPUS, 4)
ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "tests" / "training" / "strategies" / "train_each.py"
COMMUNICATION = ROOT / "tests" / "training" / "strategies" / "shared_host" / "exchange_each.py"
ROUNDING = {"float32": 4e-6, "float64": 1e-14, "bfloat16": 2**-8, "float16": 2**-10, "bf16": 2**-8, "fp16": 2**-10}

pytestmark = [
    pytest.mark.multigpu,
    pytest.mark.skipif(GPUS < 2, reason="there are not two NVIDIA GPUs"),
]

EXACT, ROUNDED = 1e-3, 2e-2
CASES: list[tuple[str, dict[str, Any], float]] = [
    ("nccl", {}, EXACT),
    ("nccl", {"compress": "bf16"}, ROUNDED),
    ("nccl", {"bucket_mb": 1.0}, EXACT),
    ("gloo", {}, EXACT),
    ("cpu-reduce", {}, EXACT),
    ("cpu-reduce", {"compress": "bf16", "bucket_mb": 0.5}, ROUNDED),
    ("cpu-reduce", {"compress": "fp16"}, ROUNDED),
    ("ps-cpu", {}, EXACT),
    ("ps-gpu", {}, EXACT),
    ("ps-gpu", {"ps_device": 1}, EXACT),
    ("fsdp", {}, EXACT),
    ("fsdp", {"compress": "bf16"}, ROUNDED),
]
ACCUMULATING = ["nccl", "cpu-reduce", "ps-cpu", "ps-gpu", "fsdp"]


def test_all_strategies_have_the_same_loss_curve() -> None:
    strategies = [(name, options) for name, options, _ in CASES]
    strategies += [(name, {"accumulate": 2}) for name in ACCUMULATING]
    with Job(TRAIN, DEVICES, {"device": "cuda", "strategies": strategies}) as job:
        found = job.answer(0, timeout_s=240)
    for (name, options, tolerance), answer in zip(CASES, found, strict=False):
        assert answer["losses"] == pytest.approx(found[0]["losses"], abs=tolerance), (name, options)
    first = len(CASES)
    for number, name in enumerate(ACCUMULATING):
        assert found[first + number]["losses"] == pytest.approx(found[first]["losses"], abs=EXACT), name


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_sums_through_the_host_are_exact_for_every_type(engine: str) -> None:
    asked = {"device": "cuda", "scenarios": ["sums", "special", "many", "shapes"], "engines": [engine]}
    with Job(COMMUNICATION, DEVICES, asked) as job:
        answers = [job.answer(rank, timeout_s=240)[engine] for rank in range(DEVICES)]
    for answer in answers:
        assert answer["sums"]["alike"]
        for key, off in answer["sums"]["worst"].items():
            assert off <= sum(ROUNDING[name] for name in key.split() if name != "None") * 1.01, key
        for odd in answer["special"].values():
            assert odd == {"7": "nan", "8": "inf", "9": "nan", "99999": "-inf"}
        assert answer["many"] == {"right": True, "engine": engine}
        assert len(answer["shapes"]["refused"]) == 3


def test_ranks_that_end_early_differ_or_die_do_not_hang_other_ranks() -> None:
    asked = {"device": "cuda", "scenarios": ["leaves", "stuck", "unlike", "dies"], "timeout_s": 3}
    with Job(COMMUNICATION, DEVICES, asked) as job:
        answers = [job.answer(rank, timeout_s=240)["auto"] for rank in range(DEVICES - 1)]
        assert job.processes[-1].wait(20) == -signal.SIGKILL
    for scenario, said in {
        "leaves": "has ended its training",
        "stuck": "no gradient was communicated for 3 s",
        "unlike": "another size or type",
        "dies": f"rank {DEVICES - 1} (process ",
    }.items():
        outcomes = [answer[scenario]["message"] for answer in answers]
        assert any(said in message for message in outcomes), outcomes
        assert all(said in message or "has stopped communicating" in message for message in outcomes), outcomes


@pytest.mark.parametrize("strategy", ["cpu-reduce", "ps-cpu", "ps-gpu", "fsdp", "data-parallel"])
def test_gpudiag_profile_measures_each_strategy(tmp_path: Path, strategy: str) -> None:
    words = ["mlp", "--strategy", strategy, "--devices", str(DEVICES), "--data", "device", "--steps", "10"]
    command = [sys.executable, "-m", "gpudiag", "profile", *words, "--warmup", "5", "--no-probe"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=200,
        check=False,
    )
    logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in (tmp_path / "logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["status"], run["strategy"], run["world_size"]) == ("complete", strategy, DEVICES)
    assert all(rank["unprofiled"]["median_ms"] > 0 for rank in run["ranks"])
