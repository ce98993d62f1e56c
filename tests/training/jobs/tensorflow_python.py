"""Find the interpreter with TensorFlow for tests of TensorFlow jobs, and read the results of a run."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpudiag.errors import GpudiagError
from gpudiag.training.launch import inspect_interpreter
from tests.cli_process import gpudiag

if TYPE_CHECKING:
    import subprocess

#: TensorFlow and PyTorch need incompatible packages; `make tensorflow` creates the first path.
PLACES = (Path(__file__).parents[3] / "build" / "tf-venv" / "bin" / "python", Path(sys.executable))


@cache
def tensorflow_python() -> str:
    """Return an interpreter that can train with TensorFlow, or skip the test."""
    path = os.environ.get("GPUDIAG_TENSORFLOW_PYTHON")
    for python in [path] if path else [str(place) for place in PLACES if place.exists()]:
        try:
            inspect_interpreter(python, "tensorflow")
        except GpudiagError:
            continue
        return python
    pytest.skip("no interpreter here has TensorFlow (make tensorflow)")


def profile(run_dir: Path, *words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `gpudiag profile --framework tensorflow` on CPU devices, with few steps, and JSON output.

    Args:
        run_dir: the run directory.
        words: the command line.
        path: an additional directory of modules.
    """
    short = ("--steps", "4", "--warmup", "2", "--output", str(run_dir), "--json")
    python = ("--framework", "tensorflow", "--python", tensorflow_python())
    return gpudiag("profile", *words, *python, *short, CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(path or ""))


def trained(
    run_dir: Path, *words: str, ranks: int = 2, path: Path | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the analysis and the record of a complete run."""
    result = profile(run_dir, *words, path=path)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (run_dir / "logs").glob("*.log"))
    assert result.returncode == 0, f"{result.stderr}\n{logs}"
    record = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert (record["status"], record["framework"], len(record["ranks"])) == ("complete", "tensorflow", ranks)
    return json.loads(result.stdout), record
