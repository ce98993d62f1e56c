"""Test marks of garbage collections in the trace of a recorded process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpudiag.model.event import Role
from gpudiag.trace import read_traces
from tests.forked import run_forked

STEPS, BETWEEN_STEPS = 3, 2

PROGRAM = f"""
import gc, sys
from pathlib import Path
import torch
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow

gc.disable()
for recording in ("light", "full"):  # every run makes both recordings, in this order
    path = Path(sys.argv[1]) / recording / "rank0.pt.trace.json.gz"
    path.parent.mkdir()
    window = ProfiledWindow(path, active={STEPS}, cuda=False, kernel_only=recording == "light")
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
def test_garbage_collections_in_recorded_steps_are_marked(tmp_path: Path) -> None:
    done = run_forked(PROGRAM, str(tmp_path))
    assert done.returncode == 0, done.stderr
    for recording in ("light", "full"):
        (trace,) = read_traces([tmp_path / recording])
        rows = np.flatnonzero(trace.events.role == Role.GARBAGE_COLLECTION)
        assert len(rows) == STEPS * BETWEEN_STEPS, "collections of the youngest generation have no range"
        assert (trace.events.end_ns[rows] > trace.events.start_ns[rows]).all()


COLLECTED = """
import gc, sys
from gpudiag.training.frameworks.pytorch.marks import MarkedCollections

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("collected")

if sys.argv[1] == "off":
    gc.disable()
gc.collect()
gc.set_threshold(0)
Cycle()
collections = MarkedCollections()
collections.start()
print("started", flush=True)
collections.stop()
"""


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("collector", "first"), [("on", "collected"), ("off", "started")])
def test_full_collection_precedes_first_step_unless_disabled(collector: str, first: str) -> None:
    done = run_forked(COLLECTED, collector)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == first


NEVER_STOPPED = """
from gpudiag.training.frameworks.pytorch.marks import MarkedCollections

collections = MarkedCollections()
collections.start()
"""


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
def test_collections_at_interpreter_exit_do_not_fail() -> None:
    """Python collects garbage after modules are gone, even if the recording was not ended."""
    done = run_forked(NEVER_STOPPED)
    assert (done.returncode, done.stderr) == (0, "")
