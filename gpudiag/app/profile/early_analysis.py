"""Analyse a command's recording in a process of low priority while the command continues.

A job may run for days after the measurement, and its user wants the diagnosis at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudiag.model.analysis import Analysis
from gpudiag.training.own_program import lower_priority, own_program

#: Maximum size of the analysis in bytes.
_MOST_BYTES = 64 * 1024 * 1024


class EarlyAnalysis:
    """An analysis in a second process. A thread calls `ready` with the result, unless `end` was called before."""

    def __init__(self, ready: Callable[[Analysis], None]) -> None:
        self._ready = ready
        self._lock = threading.Lock()
        self._ended = False
        self._pid: int | None = None
        self._thread: threading.Thread | None = None

    def begin(self, run_dir: Path) -> None:
        """Start the analysis and return at once. If the process cannot start, do nothing."""
        with contextlib.suppress(OSError, RuntimeError):
            output = tempfile.TemporaryFile(prefix="gpudiag-")  # noqa: SIM115  # closed by the thread
            self._pid = _start(run_dir, output.fileno())
            self._thread = threading.Thread(target=self._wait, args=(output, self._pid), daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop the analysis, because the command has ended and the full analysis follows."""
        with self._lock:
            self._ended = True
            if self._pid is not None:
                with contextlib.suppress(OSError):
                    os.killpg(self._pid, signal.SIGKILL)  # also ends child processes that read traces
        if self._thread is not None:
            self._thread.join()

    def _wait(self, output: tempfile._TemporaryFileWrapper[bytes], pid: int) -> None:
        """Wait until the process `pid` has ended, and call `ready` with the analysis that it wrote to `output`."""
        with output:
            _, status = os.waitpid(pid, 0)
            with self._lock:
                self._pid = None
                if self._ended or status != 0:
                    return
                output.seek(0)
                try:
                    analysis = msgspec.json.decode(output.read(_MOST_BYTES), type=Analysis)
                except (OSError, msgspec.MsgspecError):
                    return
                self._ready(analysis)  # while the lock is held, so that `end` waits for this call


def _start(run_dir: Path, output: int) -> int:
    """Start the process, which writes the analysis to the file descriptor `output`; return its id."""
    command = own_program("gpudiag.__main__", "analyze", str(run_dir), "--json")
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        # This process blocks the signals that it forwards to the command; the analysis must receive these signals.
        pid = os.posix_spawn(
            sys.executable,
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, nothing, 2),
            ],
            setsigmask=[],
            setpgroup=0,
        )
    finally:
        os.close(nothing)
    lower_priority(pid)
    return pid
