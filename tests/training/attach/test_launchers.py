"""Test common launchers, if installed: losses and exit codes do not change, and all ranks are recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpudiag.model.run import RUN_SCHEMA, RunRecord
from gpudiag.model.run_directory import read_json
from gpudiag.training.attach.command_process import Settings
from gpudiag.training.attach.start import run_command
from tests.cli_process import SECONDS, environment, gpudiag

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]

ROOT = Path(__file__).parents[3]
SCRIPTS = Path(__file__).with_name("scripts.py")
TRAINERS = ROOT / "build" / "trainers-venv" / "bin" / "accelerate"
STEPS = "60"
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
#: Open MPI requires both variables to run as root.
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

ACCELERATE = (
    str(TRAINERS), "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--main_process_port=0", str(SCRIPTS), STEPS, "accelerated",
)  # fmt: skip
MPIRUN = ("mpirun", "-n", "2", sys.executable, str(SCRIPTS), STEPS, "numbered")
#: PyTorch 2.13 aborts a process that ends while a gloo thread still releases tensors.
ABORTED = "terminate called without an active exception"


@pytest.mark.measured
@pytest.mark.parametrize(
    ("command", "there", "code"),
    [
        pytest.param(ACCELERATE, TRAINERS.exists(), 0, id="accelerate"),
        pytest.param(MPIRUN, shutil.which("mpirun") is not None and (os.cpu_count() or 1) > 1, 3, id="mpirun"),
    ],
)
def test_all_ranks_of_launcher_are_measured(command: tuple[str, ...], there: bool, code: int, tmp_path: Path) -> None:
    if not there:
        pytest.skip(f"{command[0]} is not installed")
    around = {**QUIET, **ROOT_MAY, "PYTHONPATH": str(ROOT)}
    bare = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False,
        env=environment(**around, MEETING=str(tmp_path / "bare")),
    )  # fmt: skip
    if ABORTED in bare.stderr:
        pytest.skip("PyTorch aborted a rank of the job without gpudiag at its end")
    words = ["profile", "--output", "run", "--warmup", "2", "--steps", "5", "--", *command]
    done = gpudiag(*words, cwd=tmp_path, MEETING=str(tmp_path / "measured"), **around)
    assert (bare.returncode, done.returncode) == (code, code), (bare.stderr, done.stderr)
    assert sorted(bare.stdout.split("\n")) == sorted(done.stdout.split("\n"))
    assert bare.stdout.count("\n") >= 2 * int(STEPS)
    run = read_json(tmp_path / "run" / "run.json", RunRecord, RUN_SCHEMA)
    assert [(rank.rank, rank.error, bool(rank.trace), bool(rank.light_trace)) for rank in run.ranks] == [
        (0, None, True, True),
        (1, None, True, True),
    ]
    assert run.world_size == 2


@pytest.mark.apart
def test_waiting_launcher_ends_as_without_gpudiag(tmp_path: Path) -> None:
    """The launcher has imported PyTorch and waits for longer than gpudiag's timeout."""
    child = [sys.executable, "-S", "-c", "import time; time.sleep(2)"]
    words = (sys.executable, "-c", f"import subprocess, sys, torch; subprocess.run({child}); sys.exit(3)")
    code, run = run_command(Settings(run_dir=str(tmp_path), command=words, patience_s=0.4), lambda _: None)
    assert (code, run.ranks) == (3, ())
