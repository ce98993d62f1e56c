"""Test ranges that are open when gpudiag's recording ends, and that end while the program's profiler runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forked import run_forked

#: This program opens so many ranges that the recording's memory is returned to the system; a late write would then
#: crash.
PROGRAM = """
import sys
from pathlib import Path
from torch.profiler import ProfilerActivity, profile, record_function
from gpudiag.training.frameworks.pytorch.profiler import ProfiledWindow

window = ProfiledWindow(Path(sys.argv[1]), active=None, cuda=False, kernel_only=sys.argv[2] == "light")
window.start()
theirs = [record_function("theirs") for _ in range(20_000)]
for opened in theirs:
    opened.__enter__()
getattr(window, sys.argv[3])()
with profile(activities=[ProfilerActivity.CPU]):
    for opened in reversed(theirs):
        opened.__exit__(None, None, None)
print("end")
"""


@pytest.mark.processes
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("recording", "ends"), [("light", "discard"), ("full", "stop")])
def test_open_ranges_end_without_crash(recording: str, ends: str, tmp_path: Path) -> None:
    done = run_forked(PROGRAM, str(tmp_path / "trace.json.gz"), recording, ends)
    assert (done.returncode, done.stdout.split()) == (0, ["end"]), done.stderr
