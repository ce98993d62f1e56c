"""Run the commands of the guides as written, with a training script that a reader could have.

`docs/generate.py` runs the commands on this repository's recordings, and puts their output into the guides. Commands on
other paths, such as `/shared/job/digests`, cannot run as written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_process import SECONDS, environment
from tests.test_documented_commands import commands_of

DOCS = Path(__file__).parents[1] / "docs"

#: If the file `slow` exists, rank 2 of a distributed job, or a single process, waits before each batch.
TRAIN = """
import os
import time

import torch
from torch import nn

rank = int(os.environ.get("RANK", "2"))
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())

def batch():
    if os.path.exists("slow") and rank == 2:
        time.sleep(0.1)  # a slow disk
    return torch.randn(32, 64)

for step in range(150 if os.path.exists("slow") else 1500):
    x = batch()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
del model  # before the process group is closed; `PytorchStrategy.close` explains the order
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
"""


def walk(directory: Path, *pages: str) -> dict[str, str]:
    """Run the commands of the pages in `directory`, each once; return command → all that it printed.

    The script is slow for all commands except those with `--output after`.
    """
    (directory / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}:{environment()['PATH']}"
    outputs: dict[str, str] = {}
    for command in (command for page in pages for command in commands_of((DOCS / page).read_text(encoding="utf-8"))):
        if command in outputs:
            continue
        if "--output after" in command:
            (directory / "slow").unlink(missing_ok=True)
        else:
            (directory / "slow").touch()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=directory,
            env=environment(PATH=path, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        # Four processes on two cores can also have a small straggler without the fault.
        allowed = {0, 1} if "--fail-on" in command else {0}
        assert done.returncode in allowed, (command, done.stdout, done.stderr)
        outputs[command] = done.stdout + done.stderr
    return outputs


@pytest.mark.apart
@pytest.mark.processes
@pytest.mark.xdist_group("processes")
def test_guides_of_distributed_jobs_find_the_slow_rank_and_its_line(tmp_path: Path) -> None:
    outputs = walk(
        tmp_path,
        "guides/one-rank-is-slow.md",
        "guides/ddp-slower-than-one-gpu.md",
        "guides/fsdp-does-not-overlap.md",
        "ten-minutes.md",
    )
    for directory in ("run", "before"):
        report = outputs[f"gpudiag profile --output {directory} -- torchrun --nproc-per-node 4 train.py"]
        assert "rank 2's" in report.lower(), report
        assert "time.sleep(0.1)" in report, report
    assert "gpudiag diff run after" in outputs
    assert "gpudiag analyze after --fail-on straggler     # for CI: exit code 1 if it comes back" in outputs
    assert len(outputs) >= 10


@pytest.mark.apart
@pytest.mark.processes
@pytest.mark.xdist_group("processes")
def test_guide_of_one_process_finds_the_slow_line(tmp_path: Path) -> None:
    outputs = walk(tmp_path, "guides/low-gpu-utilization.md")
    report = outputs["gpudiag profile --output run -- python train.py"]
    assert "time.sleep(0.1)" in report, report
