"""Run a task for each rank of a large job in forked processes, and protect the imports of spawned processes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from gpudiag.model.event import Trace
from gpudiag.model.large_jobs.packed_events import PackedEvents

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

#: Jobs of at most this many ranks are analysed in this process with all events in memory. The limit is an estimate: 64
#: ranks take 100 MB, and starting processes costs more time than it saves.
MOST_IN_MEMORY = 64


def each_rank(task: Callable[[Item], Outcome], items: Iterable[Item]) -> list[Outcome]:
    """Call `task` for the item of each rank, in forks of this process if there are many; return outcomes in order."""
    ranks = list(items)
    workers = min(usable_cpus(), len(ranks))
    if len(ranks) <= MOST_IN_MEMORY or workers < 2 or not can_fork():
        return [task(rank) for rank in ranks]
    from gpudiag.errors import GpudiagError
    from gpudiag.trace.forked_readers import ForkedReaders, ReaderKilledError

    try:
        with ForkedReaders(workers, lambda number: task(ranks[number])) as forks:
            forks.start(len(ranks))
            return forks.results()
    except ReaderKilledError as error:
        raise GpudiagError(
            "a process that analysed ranks was killed, probably for lack of memory",
            "Close other programs, or analyse fewer ranks at once.",
        ) from error


class WhileReading(Generic[Outcome]):
    """A task for each trace of a large job, run by the process that reads the trace, before events are packed.

    An object of this class is called like `map`. For a trace whose events were not replaced since reading, the call
    returns the kept outcome, and forgets it. For all other traces, the call runs the task.
    """

    def __init__(self, task: Callable[[Trace], Outcome]) -> None:
        self.task = task
        self._outcomes: dict[Any, Outcome] = {}

    def keep(self, read: Iterable[tuple[Trace, Outcome | None]]) -> None:
        """Keep the outcomes of the traces that were read; None means that the task was not run."""
        self._outcomes |= {trace.events: outcome for trace, outcome in read if outcome is not None}

    def __call__(self, task: Callable[[Trace], Outcome], traces: Iterable[Trace], /) -> list[Outcome]:
        """Return the outcome for each trace; `task` is the task of this object."""
        # An `EventTable` cannot be a key, and has no outcome, because outcomes are kept only if events are packed.
        ranks = [
            (trace, self._outcomes.pop(trace.events, None) if isinstance(trace.events, PackedEvents) else None)
            for trace in traces
        ]
        others = iter(each_rank(task, [trace for trace, outcome in ranks if outcome is None]))
        return [next(others) if outcome is None else outcome for _, outcome in ranks]


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Prevent processes that are spawned within the block from importing modules of the current directory."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def can_fork() -> bool:
    """Return whether forking is safe: on Linux, in a process whose only Python thread is this one."""
    return sys.platform == "linux" and threading.active_count() == 1


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
