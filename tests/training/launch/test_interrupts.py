"""A run that is ended from outside keeps the steps timed so far."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_process import SECONDS, environment


@pytest.mark.xdist_group("processes")
def test_timed_steps_outlive_a_termination(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gpudiag",
        "profile",
        "trivial",
        "--devices",
        "2",
        "--steps",
        "1000000",
        "--warmup",
        "1",
    ]
    words = [*command, "--output", str(tmp_path)]
    with subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment()
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if "timing steps" in line:
                break
        # Five seconds are more than a few steps of this model take, on any machine, and less than all of them.
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(5)
        run.send_signal(signal.SIGTERM)
        assert run.wait(SECONDS) == 130
    record = json.loads((tmp_path / "run.json").read_bytes())
    assert record["status"] == "interrupted"
    assert [len(rank["unprofiled"]["step_ms"]) > 0 for rank in record["ranks"]] == [True, True]
