"""Chunks between a process's own memory and shared memory, copied by a thread: for training on CPUs."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch

from gpudiag.errors import WorkerFailedError
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.work import Work

_ROUNDS_AWAKE = 50
#: Threads that train want the same processors, and the interpreter's lock.
_SHORTEST_NAP_S, _LONGEST_NAP_S = 5e-5, 1e-3


class CpuMover:
    """Does in one thread what a GPU's streams do, in the same order of counters.

    Args:
        control: the shared memory, seen from this rank.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._problem: WorkerFailedError | None = None
        self._works: queue.SimpleQueue[tuple[Work, torch.futures.Future[torch.Tensor]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="gpudiag-copy", daemon=True)
        self._thread.start()

    def exchange(self, work: Work) -> torch.futures.Future[torch.Tensor]:
        """Queue the work. The future is done when the result is in the tensor."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._works.put((work, future))
        return future

    def drain(self) -> None:
        """Wait until everything queued has been done, or given up."""
        self._works.put(None)
        self._thread.join()

    def close(self) -> None:
        """Nothing is pinned."""

    def abandon(self, problem: WorkerFailedError) -> None:
        """Give up what is under way: its futures raise this."""
        self._problem = problem

    def _loop(self) -> None:
        while (item := self._works.get()) is not None:
            work, future = item
            if self._move(work):
                future.set_result(work.tensor)
            else:
                problem: Any = self._problem  # torch's stub wants a value here
                future.set_exception(problem)

    def _move(self, work: Work) -> bool:
        packed = work.packed
        if work.wire is not None:
            packed.copy_(work.tensor)
        control, layout = self._control, self._control.layout
        sent = fetched = rounds = 0
        chunks = work.chunks
        while fetched < len(chunks):
            if self._problem is not None:
                return False
            before = fetched + sent
            if sent < len(chunks) and control.is_ready(chunks[sent][0] + 1 - layout.slots):
                number, begin, end = chunks[sent]
                control.slot(control.rank, number, packed.dtype)[: end - begin].copy_(packed[begin:end])
                control.set(control.lane(at.ARRIVED, number), number + 1)
                sent += 1
            if fetched < sent and control.is_ready(chunks[fetched][0] + 1):
                number, begin, end = chunks[fetched]
                packed[begin:end].copy_(control.slot(layout.world, number, packed.dtype)[: end - begin])
                control.set(control.lane(at.FETCHED, number), number + 1)
                fetched += 1
            rounds = 0 if fetched + sent > before else rounds + 1
            if rounds:
                _nap(rounds)
        if work.wire is not None:
            work.tensor.copy_(work.wire)
        return True


def _nap(rounds: int) -> None:
    """Let others run: first without sleeping, then for up to an eighth of what was waited already, 1 ms at most."""
    asleep = rounds - _ROUNDS_AWAKE
    time.sleep(min(_SHORTEST_NAP_S * 2 ** min(asleep // 8, 10), _LONGEST_NAP_S) if asleep >= 0 else 0)
