"""Run programs that use PyTorch as forks of one process that has imported PyTorch.

The import takes most of the time of a program that uses PyTorch. The forks share only this import, and each exits as a
separate program would, including `atexit`. Commands of gpudiag and of users run in separate processes, because their
tests also cover the imports.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.cli_process import SECONDS, environment

ROOT = Path(__file__).parents[1]

#: The program of the process that forks. For each line of JSON on its standard input, the process forks. The forking
#: process writes the fork's process id when the fork starts, and again when the fork has ended.
_PARENT = """
import gc, json, os, select, signal, sys
gc.disable()
import torch, torch._dynamo
gc.enable()
gc.freeze()  # because garbage collections in the forks would copy every page of memory

def told(**words):
    os.write(1, json.dumps(words).encode() + b"\\n")

def next_program():
    running = 0
    while True:
        if select.select([0], [], [], 0.01 if running else None)[0]:
            line = sys.stdin.buffer.readline()
            if not line:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                return json.loads(line)
            running += 1
            told(begun=pid)
        ended, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if ended:
            running -= 1
            told(ended=ended, code=os.waitstatus_to_exitcode(status))

asked = next_program()
signal.signal(signal.SIGINT, signal.default_int_handler)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(os.open(asked["out"], os.O_WRONLY | os.O_APPEND), 1)
os.dup2(os.open(asked["err"], os.O_WRONLY | os.O_APPEND), 2)
os.environ.clear()
os.environ.update(asked["environment"])
sys.argv = ["-c", *asked["words"]]
program = compile(asked["source"], "<string>", "exec")
del asked, next_program, told, gc, json, os, select, signal, sys, torch
exec(program)
"""


class _Parent:
    """The process that has imported PyTorch.

    The process ends when the current process ends, because its standard input is closed.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", _PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asking: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self.ended: dict[int, int] = {}
        atexit.register(self._end)

    def _end(self) -> None:
        self._asking.close()
        self._process.wait()
        self._answers.close()

    def fork(self, asked: Mapping[str, object]) -> int:
        """Fork a process that runs the program `asked`, with the fields that `Forked` sends; return its process id."""
        self._asking.write(json.dumps(asked).encode() + b"\n")
        self._asking.flush()
        while True:
            answer = self._answer()
            if "begun" in answer:
                return answer["begun"]

    def hear(self, seconds: float) -> None:
        """Record the processes that have ended, waiting up to `seconds` for the first."""
        while select.select([self._answers], [], [], seconds)[0]:
            self._answer()
            seconds = 0.0

    def _answer(self) -> dict[str, int]:
        """Read an answer of the forking process; if a fork has ended, store its exit code in `ended`."""
        # Read one byte at a time up to a line's end: the parent writes each line at once, and a line fits into a pipe.
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = os.read(self._answers.fileno(), 1)
            assert piece, "the process that imports PyTorch has ended"
            line += piece
        answer: dict[str, int] = json.loads(line)
        if "ended" in answer:
            self.ended[answer["ended"]] = answer["code"]
        return answer


@functools.cache
def _parent() -> _Parent:
    return _Parent()


class Forked:
    """A running or ended program with the methods of a `subprocess.Popen`.

    Args:
        source: the source text of the program, as for `python -c`.
        words: its arguments.
        out, err: files for its output.
        values: its environment.
    """

    def __init__(self, source: str, *words: str, out: Path, err: Path, values: dict[str, str]) -> None:
        self.returncode: int | None = None
        for path in (out, err):
            path.touch()
        asked = {"source": source, "words": words, "out": str(out), "err": str(err), "environment": values}
        self.pid = _parent().fork(asked)

    def poll(self) -> int | None:
        """Return the program's exit code, or None if it runs."""
        _parent().hear(0.0)
        self.returncode = _parent().ended.get(self.pid)
        return self.returncode

    def wait(self, timeout_s: float = SECONDS) -> int:
        """Wait for the program, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: the program runs longer than the limit.
        """
        until = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout_s)
            _parent().hear(0.1)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the program if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the program if it still runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the program if it still runs."""
        self.send_signal(signal.SIGKILL)


def run_forked(source: str, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the CPU and wait for it, as `subprocess.run` does with `python -c`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        program = Forked(
            source, *words, out=out, err=err, values=environment(**{"CUDA_VISIBLE_DEVICES": "", **changes})
        )
        try:
            code = program.wait()
        finally:
            program.kill()
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())
