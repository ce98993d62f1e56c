"""Garbage collections of a recorded process are marked in its trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpudiag.model.event import Role
from gpudiag.trace import read_traces
from tests.cli_process import SECONDS, environment

STEPS, BETWEEN_STEPS = 3, 2

PROGRAM = f"""
import gc, sys
from pathlib import Path
import torch
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow

gc.disable()
window = ProfiledWindow(Path(sys.argv[1]), active={STEPS}, cuda=False, light=sys.argv[2] == "light")
window.start()
for step in range(5 + {STEPS}):
    torch.ones(3).sum()
    gc.collect(0)
    for _ in range({BETWEEN_STEPS}):
        gc.collect()
    window.step()
window.stop()
assert not gc.callbacks, gc.callbacks
"""


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("recording", ["light", "full"])
def test_collections_of_recorded_steps_are_marked(recording: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt.trace.json.gz"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), recording],
        capture_output=True, text=True, env=environment(CUDA_VISIBLE_DEVICES=""), timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (trace,) = read_traces([path])
    rows = np.flatnonzero(trace.events.role == Role.GARBAGE_COLLECTION)
    assert len(rows) == STEPS * BETWEEN_STEPS, "the youngest objects' collections are not worth a range"
    assert (trace.events.end_ns[rows] > trace.events.start_ns[rows]).all()


NEVER_STOPPED = """
from gpudiag.training.frameworks.pytorch.garbage import MarkedCollections

collections = MarkedCollections()
collections.start()
"""


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
def test_collections_at_a_program_s_end_are_none_of_its_own() -> None:
    """Python collects when modules are gone already, also where nobody ended the recording."""
    done = subprocess.run(
        [sys.executable, "-c", NEVER_STOPPED],
        capture_output=True, text=True, env=environment(CUDA_VISIBLE_DEVICES=""), timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
