"""The command line and the environment of one launch of TensorFlow processes, on this node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpudiag.launch import torchrun
from gpudiag.worker.directory_store import STORE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpudiag.launch.plan import Plan

_STARTER = Path(__file__).with_name("starter.py")


def command_line(plan: Plan) -> list[str]:
    """`python starter.py PROCESSES python -m gpudiag.workloads RUN_DIR JOB COMMAND`."""
    return [
        sys.executable,
        "-I",
        str(_STARTER),
        str(plan.processes),
        plan.python,
        "-m",
        torchrun.WORKER,
        str(plan.run_dir.resolve()),
        msgspec.json.encode(plan.job).decode(),
        msgspec.json.encode(plan.command).decode(),
    ]


def environment(
    plan: Plan, private: Path, progress: Path, *, has_gpudiag: bool, inherited: Mapping[str, str]
) -> dict[str, str]:
    """As for PyTorch's processes, and what TensorFlow needs beside it.

    Args:
        plan: the launch.
        private: a directory of this launch; everything temporary goes there and is removed with it.
        progress: the socket on which progress is told.
        has_gpudiag: the interpreter finds gpudiag by itself; otherwise a directory with nothing else is added.
        inherited: the user's environment.
    """
    values = torchrun.environment(plan, private, progress, has_gpudiag=has_gpudiag, inherited=inherited)
    values["KERAS_BACKEND"] = "tensorflow"
    values[STORE_VARIABLE] = str(private / "store")
    if plan.job.device == "cpu":
        values["CUDA_VISIBLE_DEVICES"] = ""  # TensorFlow would complain of a driver that it does not find
    # Threads of one op, and ops at a time: by default both are as many as the machine has cores, in every process.
    values.setdefault("TF_NUM_INTRAOP_THREADS", str(plan.threads))
    values.setdefault("TF_NUM_INTEROP_THREADS", str(max(2, plan.threads)))
    return values
