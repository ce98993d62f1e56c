"""Define the settings that gpudiag passes to each process of a command, and the report that each process writes.

The settings are in one environment variable. The reports are files in a private directory of gpudiag. Reports explain
why a command could not be measured, even if the run directory cannot be written. A process writes its report after
importing PyTorch, at its first optimizer step, then about every `_INTERVAL_S` seconds unless it is being measured, and
when it ends. This module imports no slow modules, because every process that imports PyTorch loads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gpudiag.training.session.position import environment_number

#: Environment variable with `Settings` as JSON.
VARIABLE = "GPUDIAG_ATTACH"

#: A process that computes for this many seconds without an optimizer step is recorded for a fixed time instead.
PATIENCE_S = 20.0

#: Empty file in the directory of reports. Each Python process of the command makes the file (`entry/sitecustomize.py`).
PYTHON_SEEN = "python"

#: Seconds between two reports of a process that trains.
_INTERVAL_S = 5.0
#: Maximum length of an error in a report.
_MAX_CHARACTERS = 500

Stage = Literal["imported", "stepping", "waiting", "measuring", "measured", "not-first", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The command and how to measure it.

    Attributes:
        run_dir: the run directory, absolute, because the command may change its working directory.
        command: the command line as given.
        stop: end the command's processes when everything is measured.
        steps: number of unprofiled steps; None to choose it by their duration.
        warmup: number of warm-up steps; None to detect convergence.
        patience_s: see `PATIENCE_S`.
        reports: directory of the processes' reports while the command runs; "" for none.
        run_id: run id of ranks that are measured separately. Ranks that are measured together agree on another id.
    """

    run_dir: str
    command: tuple[str, ...]
    stop: bool = False
    steps: int | None = None
    warmup: int | None = None
    patience_s: float = PATIENCE_S
    reports: str = ""
    run_id: str = ""

    def encode(self) -> str:
        """Return the settings as JSON, the value of the environment variable `VARIABLE`."""
        return json.dumps(asdict(self))


def read_settings() -> Settings | None:
    """Return the settings in this process's environment; None if they are missing or malformed."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        values = json.loads(text)
        return Settings(**{**values, "command": tuple(values["command"])})
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """Report of one process of the command that has imported PyTorch.

    Attributes:
        pid, rank, world_size: process number and cluster position; rank 0 of 1 while the position is unknown.
        stage: progress of the measurement. `stepping`: an optimizer has stepped; `waiting`: the process waits for
            other ranks; `not-first`: another process of the rank is measured instead; `failed`: gpudiag failed in
            this process.
        calls: number of optimizer steps so far.
        helper: True if the process is a launcher or a DataLoader worker.
        numbered: True if a launcher set the environment variable RANK.
        own_profiler: True if the program has created a profiler.
        distributed_optimizer: True if the program imported `torch.distributed.optim`, whose optimizers are not hooked.
        error: the exception that ended the program, or the reason why gpudiag failed; None if neither happened.
        ended_s: time at which the process ended without a signal, in seconds of `time.time`; otherwise None.
    """

    pid: int
    rank: int = 0
    world_size: int = 1
    stage: Stage = "imported"
    calls: int = 0
    helper: bool = False
    numbered: bool = False
    own_profiler: bool = False
    distributed_optimizer: bool = False
    error: str | None = None
    ended_s: float | None = None


class ProcessReporter:
    """Write this process's report into `folder` ("": nowhere). Ignore failures: reports only improve messages."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder) if folder else None
        self._pid = os.getpid()
        self._rank, self._world_size = environment_number("RANK", 0), environment_number("WORLD_SIZE", 1)
        self._written_s = time.monotonic()
        self._written_calls = 0
        self.stage: Stage = "imported"
        self.error: str | None = None
        self.own_profiler = False
        #: Number of optimizer steps at which the next report is due.
        self.next_calls = 1

    def set_position(self, rank: int, world_size: int) -> None:
        """Set the rank and the world size of the process group."""
        self._rank, self._world_size = rank, world_size

    def due(self, calls: int) -> None:
        """Write a report with `calls` optimizer steps, and compute when the next report is due."""
        now_s = time.monotonic()
        per_second = (calls - self._written_calls) / max(1e-3, now_s - self._written_s)
        # The time before the first call includes the start of the program, so it does not show the rate of calls. The
        # next report is then due at call 10, when the rate is known.
        self.next_calls = calls + max(1, int(per_second * _INTERVAL_S)) if calls > 1 else calls + 9
        self._written_s, self._written_calls = now_s, calls
        if self.stage == "imported":
            self.stage = "stepping"
        self.write(calls)

    def write(self, calls: int, *, ended: bool = False) -> None:
        """Write the report after `calls` optimizer steps. `ended`: add the current time and the uncaught exception."""
        if self._folder is None or os.getpid() != self._pid:  # a forked process has a reporter of its own
            return
        error = self.error
        if ended and error is None:
            error = _uncaught()
        report = ProcessReport(
            pid=self._pid,
            rank=self._rank,
            world_size=self._world_size,
            stage=self.stage,
            calls=calls,
            helper=not may_train(),
            numbered=bool(os.environ.get("RANK")),
            own_profiler=self.own_profiler,
            distributed_optimizer="torch.distributed.optim.optimizer" in sys.modules,
            error=error[:_MAX_CHARACTERS] if error else None,
            ended_s=time.time() if ended else None,
        )
        with contextlib.suppress(Exception):
            path = self._folder / f"{self._pid}.json"
            new = path.with_suffix(".new")
            new.write_text(json.dumps(asdict(report)), encoding="utf-8")
            new.replace(path)


def _uncaught() -> str | None:
    """Return class and message of the uncaught exception that ends the program; None if there is none."""
    error = getattr(sys, "last_value", None)
    return None if error is None else f"{type(error).__name__}: {error}".rstrip(": ")


def may_train() -> bool:
    """Return whether this process may train: it is neither a launcher nor a DataLoader worker.

    A training process may import the launcher's module too, but only training processes have a process group. A child
    of `multiprocessing` without a process group is regarded as a DataLoader worker.
    """
    torch: Any = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        return True
    if "torch.distributed.elastic.agent.server.api" in sys.modules:
        return False
    processes = sys.modules.get("multiprocessing.process")
    return processes is None or processes.parent_process() is None
