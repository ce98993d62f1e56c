"""Start the processes of a job as torchrun would, and read each process's answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cli_process import SECONDS
from tests.forked import Forked

_RUN = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

#: The prefix of the line in a rank's output that contains its answer.
MARK = "ANSWER "


class Job:
    """Processes of the command `python PROGRAM RANK WORLD MEETING ARGUMENT`, where ARGUMENT is JSON.

    Args:
        program: the file to run. The ranks connect through the file MEETING, which does not exist yet.
        world: the number of processes.
        argument: any JSON value.
        environment: additional variables.
    """

    def __init__(self, program: Path, world: int, argument: object = None, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        values = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment}
        self.outputs = [folder / f"rank{rank}.txt" for rank in range(world)]
        self.processes = []
        for rank, output in enumerate(self.outputs):
            words = [str(program), str(rank), str(world), str(folder / "meeting"), json.dumps(argument)]
            self.processes.append(Forked(_RUN, *words, out=output, err=output, values=values))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def answer(self, rank: int, timeout_s: float = SECONDS) -> Any:
        """Return the answer of a rank. Fail with the rank's output if there is no answer in time."""
        try:
            self.processes[rank].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} still runs: {self.text(rank)}") from None
        lines = [line for line in self.text(rank).splitlines() if line.startswith(MARK)]
        assert lines, self.text(rank)[-4000:]
        return json.loads(lines[-1].removeprefix(MARK))

    def until(self, rank: int, text: str, timeout_s: float = SECONDS) -> None:
        """Wait until a rank has printed a text."""
        until = time.monotonic() + timeout_s
        while text not in self.text(rank):
            assert time.monotonic() < until, self.text(rank)
            assert self.processes[rank].poll() is None, self.text(rank)
            time.sleep(0.02)

    def text(self, rank: int) -> str:
        """Return what a rank has printed so far."""
        return self.outputs[rank].read_text(errors="replace")


def tell(answer: object) -> None:
    """Print the answer of a rank."""
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()
