"""Define the interface of faults, which are switched on and off between steps, and the faults for all frameworks."""

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

#: Program whose argument is the number of a core, which it keeps busy.
_BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


class Fault(ABC, Generic[TrainerT]):
    """A fault in one process, initially off.

    Args:
        trainer: the training loop.
        amount_ms: size of the fault in ms per step.
        affected: True if this rank has the fault. Other ranks only take part in operations that all ranks must run.
    """

    def __init__(self, trainer: TrainerT, amount_ms: float, *, affected: bool) -> None:
        self.trainer, self.amount_ms, self.affected = trainer, amount_ms, affected
        self.prepare()

    def prepare(self) -> None:
        """Prepare the fault: measure how much work takes `amount_ms`, and allocate this work's data."""
        return

    @abstractmethod
    def switch(self, *, on: bool) -> None:
        """Switch the fault on or off. The method is called between two steps, on every rank before the same step."""

    def rest(self) -> None:
        """Restore the trainer, so that other faults can run. The fault may be switched on again later."""
        self.switch(on=False)

    def close(self) -> None:
        """Release the fault's resources. The method is called once, after `rest`."""
        return


class NoFault(Fault[TrainerT]):
    """Run the clean job. Switching has no effect."""

    def switch(self, *, on: bool) -> None:
        """Do nothing."""


class LateLoader(Fault[TrainerT]):
    """Deliver each batch `amount_ms` late."""

    def switch(self, *, on: bool) -> None:
        """Set the delay of the following batches."""
        self.trainer.loader.late_s = self.amount_ms / 1e3 if on and self.affected else 0.0


class PinnedCore(Fault[TrainerT]):
    """Pin all threads of the process to one core, together with busy programs.

    The number of busy programs is `amount_ms` divided by the clean step time. The fault simulates a bad CPU binding or
    a container with too few cores. One busy program leaves half of the core to the process, which might not delay a
    step on a GPU, because the host runs ahead of the device. Three busy programs leave a quarter of the core.
    """

    def prepare(self) -> None:
        """Start the busy programs, and suspend them until the fault is switched on."""
        self._all_cores = os.sched_getaffinity(0)
        self._busy: list[subprocess.Popen[bytes]] = []
        if self.affected:
            self._core = max(self._all_cores)  # any core
            count = max(1, round(self.amount_ms / self.trainer.clean_ms))
            command = [sys.executable, "-I", "-c", _BUSY, str(self._core)]
            self._busy = [subprocess.Popen(command) for _ in range(count)]
            self._signal(signal.SIGSTOP)

    def switch(self, *, on: bool) -> None:
        """Pin the threads and continue the busy programs (on), or unpin the threads and suspend the programs (off)."""
        if not self.affected:
            return
        cores = {self._core} if on else self._all_cores
        # Pin existing threads one by one. New threads inherit the affinity of the thread that starts them.
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
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
    """Make the fault of this process, switched off. The fault's size is `plan.amount` times the clean step time.

    `kinds` are the classes of faults by kind. Without `plan.ranks` all ranks are affected.
    """
    affected = not plan.ranks or trainer.place.rank in plan.ranks
    return kinds[plan.kind](trainer, plan.amount * trainer.clean_ms, affected=affected)
