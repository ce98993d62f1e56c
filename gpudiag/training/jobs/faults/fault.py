"""The interface of faults, which are switched on and off between two steps, and the faults of every framework."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

from gpudiag.model.benchmarks.selftest import FaultPlan
from gpudiag.training.jobs.faults.trainer import Trainer

TrainerT = TypeVar("TrainerT", bound=Trainer)

_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class Fault(ABC, Generic[TrainerT]):
    """A fault in one process, initially off.

    Args:
        trainer: the training loop.
        amount_ms: the size of the fault.
        affected: this rank has the fault; other ranks only do what all ranks must do together.
    """

    def __init__(self, trainer: TrainerT, amount_ms: float, *, affected: bool) -> None:
        self.trainer = trainer
        self.amount_ms = amount_ms
        self.affected = affected
        self.prepare()

    def prepare(self) -> None:
        """Measure and allocate what the fault needs."""
        return

    @abstractmethod
    def switch(self, *, on: bool) -> None:
        """Switch the fault on or off. The method is called between two steps, on every rank before the same step."""

    def rest(self) -> None:
        """Restore the trainer; the fault may be switched on again later."""
        self.switch(on=False)

    def close(self) -> None:
        """Release what it holds. The method is called once, at rest."""
        return


class NoFault(Fault[TrainerT]):
    """A clean run, in which on and off are the same."""

    def switch(self, *, on: bool) -> None:
        """Do nothing."""


class LateLoader(Fault[TrainerT]):
    """Deliver each batch `amount_ms` late."""

    def switch(self, *, on: bool) -> None:
        """Set the delay of the next batches."""
        self.trainer.loader.late_s = self.amount_ms / 1e3 if on and self.affected else 0.0


class PinnedCore(Fault[TrainerT]):
    """All threads of the process share one core with as many busy programs as `amount_ms` clean steps.

    The fault simulates a bad CPU binding or a container that is too small. A GPU process spends much of its step
    launching ahead of the device; with one busy program it could hide that it has half a core. Three busy programs
    leave the process a quarter of the core.
    """

    def prepare(self) -> None:
        """Start the busy programs, stopped."""
        self._all_cores = os.sched_getaffinity(0)
        self._busy: list[subprocess.Popen[bytes]] = []
        if self.affected:
            self._core = max(self._all_cores)
            count = max(1, round(self.amount_ms / self.trainer.clean_ms))
            command = [sys.executable, "-I", "-c", _BUSY, str(self._core)]
            self._busy = [subprocess.Popen(command) for _ in range(count)]
            self._signal(signal.SIGSTOP)

    def switch(self, *, on: bool) -> None:
        """Pin the threads and continue the busy programs, or undo both."""
        if not self.affected:
            return
        cores = {self._core} if on else self._all_cores
        # A new thread inherits the affinity of its parent; existing threads are pinned one by one.
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


def make_fault(kinds: Mapping[str, type[Fault[TrainerT]]], plan: FaultPlan, trainer: TrainerT) -> Fault[TrainerT]:
    """Make the fault of this process, switched off, with a size relative to the trainer's clean step time."""
    affected = not plan.ranks or trainer.place.rank in plan.ranks
    return kinds[plan.kind](trainer, plan.amount * trainer.clean_ms, affected=affected)
