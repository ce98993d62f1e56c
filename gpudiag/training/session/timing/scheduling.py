"""How long the threads that launch a step's work waited for a core, as the kernel counts it.

Linux counts for each thread how often it was taken off its core although it could have gone on (`status`,
`nonvoluntary_ctxt_switches`) and how long it was ready to run and had no core (`schedstat`, second value in ns:
https://docs.kernel.org/scheduler/sched-stats.html). Both are read once before and once after the timed steps, 0.1 ms
each, so that nothing is read within a step.

The threads are the one that trains and, beside a GPU, those of autograd, which launch backward. The figures are scaled
to one timed step, because what was left out of the timed steps (an epoch's end) lies between the two readings, too.

Worked example. Between the readings 1000 ms pass, the threads wait 50 ms for a core, and the mean step takes 20 ms:
50 / 1000 * 20 = 1 ms of each step.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpudiag.model.run import Scheduling

_TASKS = Path("/proc/self/task")
#: PyTorch names autograd's threads for devices this way.
_AUTOGRAD = "pt_autograd_"
_SWITCHES = "nonvoluntary_ctxt_switches:"
_NS_PER_MS = 1e6


class _Counters(NamedTuple):
    """What the kernel has counted for one thread since it began."""

    cpu_ns: int
    wait_ns: int
    switches: int


class SchedulingWatch:
    """Reads the kernel's counters around series of steps. Call it on the thread that trains."""

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._before: dict[int, _Counters] = {}
        self._begun_ns = self._wall_ns = 0
        self._cpu_ns = self._wait_ns = self._switches = 0
        self._known = False

    def find_threads(self) -> None:
        """Find out which threads to read, before `begin`: among 60 threads that takes 1 ms."""
        self._threads = [threading.get_native_id(), *_autograd_threads()]

    def begin(self) -> None:
        """Read before a series of steps."""
        self._before = _read(self._threads)
        self._begun_ns = time.perf_counter_ns()

    def end(self) -> None:
        """Read after it; a second series adds to the first."""
        if not self._before:
            return
        wall_ns = time.perf_counter_ns() - self._begun_ns
        after = _read(self._threads)
        for thread, before in self._before.items():
            if thread in after:
                self._cpu_ns += after[thread].cpu_ns - before.cpu_ns
                self._wait_ns += after[thread].wait_ns - before.wait_ns
                self._switches += after[thread].switches - before.switches
                self._known = True
        self._wall_ns += wall_ns
        self._before = {}

    def per_step(self, step_ms: float) -> Scheduling | None:
        """Return the figures of one step of this length; None where the kernel does not tell."""
        if not self._known or not self._cpu_ns or self._wall_ns <= 0:
            return None  # a kernel without these counters shows zeros
        steps_of = step_ms * _NS_PER_MS / self._wall_ns
        return Scheduling(
            involuntary_switches=round(max(0, self._switches) * steps_of, 6),
            run_queue_wait_ms=round(max(0, self._wait_ns) / _NS_PER_MS * steps_of, 6),
            cpu_ms=round(max(0, self._cpu_ns) / _NS_PER_MS * steps_of, 6),
        )


def _read(threads: Sequence[int]) -> dict[int, _Counters]:
    counters = ((thread, _counters(thread)) for thread in threads)
    return {thread: counted for thread, counted in counters if counted is not None}


def _autograd_threads() -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS):  # noqa: PTH208  # three times as fast, and there may be hundreds
            with contextlib.suppress(OSError):
                if (_TASKS / name / "comm").read_text(errors="replace").startswith(_AUTOGRAD):
                    found.append(int(name))
    return found


def _counters(thread: int) -> _Counters | None:
    try:
        cpu_ns, wait_ns, *_ = map(int, (_TASKS / str(thread) / "schedstat").read_text().split())
        lines = (_TASKS / str(thread) / "status").read_text(errors="replace").splitlines()
        switches = next(int(line.split()[1]) for line in lines if line.startswith(_SWITCHES))
    except (OSError, ValueError, StopIteration, IndexError):
        return None
    return _Counters(cpu_ns, wait_ns, switches)
