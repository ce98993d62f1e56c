"""One core for the whole process, shared with others that are busy: a bad binding, or too small a container."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from gpudiag.training.jobs.faults.fault import Fault, TrainerT

_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class PinnedCore(Fault[TrainerT]):
    """All threads of the process on one core, with as many busy programs as the amount says times the clean step.

    A GPU process spends much of its step launching ahead of the device; with one busy program it could have half its
    core and hide that. An amount of 3 is three of them: a quarter of a core.
    """

    def __init__(self, trainer: TrainerT, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._usual = os.sched_getaffinity(0)
        self._busy: list[subprocess.Popen[bytes]] = []
        if mine:
            self._core = max(self._usual)
            count = max(1, round(amount_ms / trainer.clean_ms))
            command = [sys.executable, "-I", "-c", _BUSY, str(self._core)]
            self._busy = [subprocess.Popen(command) for _ in range(count)]
            self._signal(signal.SIGSTOP)

    def switch(self, *, on: bool) -> None:
        """Pin and let the busy programs run, or neither."""
        if not self.mine:
            return
        cores = {self._core} if on else self._usual
        # A new thread inherits from the one that made it; those that are there already are pinned one by one.
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)
        self._signal(signal.SIGCONT if on else signal.SIGSTOP)

    def close(self) -> None:
        """End the busy programs."""
        for program in self._busy:
            program.kill()
            program.wait()

    def _signal(self, number: signal.Signals) -> None:
        for program in self._busy:
            program.send_signal(number)
