"""Copy chunks between tensors and shared memory in a thread, for training on CPUs."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch

from gpudiag.errors import WorkerFailedError
from gpudiag.training.strategies.shared_host import layout as at
from gpudiag.training.strategies.shared_host.control import Control
from gpudiag.training.strategies.shared_host.layout import ChunkedTensor

#: Number of polling rounds before the thread sleeps.
_ROUNDS_AWAKE = 50
#: Shortest and longest sleep in seconds. During a sleep, training threads can use the processor and the interpreter.
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 5e-5, 1e-3


class CpuMover:
    """Copy chunks in one thread, which uses the counters in the same way as the streams of `CudaMover`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._problem: WorkerFailedError | None = None
        self._queue: queue.SimpleQueue[tuple[ChunkedTensor, torch.futures.Future[torch.Tensor]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._loop, name="gpudiag-copy", daemon=True)
        self._thread.start()

    def enqueue(self, chunked: ChunkedTensor) -> torch.futures.Future[torch.Tensor]:
        """Queue a tensor. The future is done when the tensor contains the result."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._queue.put((chunked, future))
        return future

    def drain(self) -> None:
        """Wait until all queued tensors are done or have failed, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def close(self) -> None:
        """Do nothing, because no memory is pinned."""

    def abandon(self, problem: WorkerFailedError) -> None:
        """Make the futures of all tensors in progress raise this error."""
        self._problem = problem

    def _loop(self) -> None:
        """Move the queued tensors in order, until `drain` queues None."""
        while (item := self._queue.get()) is not None:
            chunked, future = item
            if self._move(chunked):
                future.set_result(chunked.tensor)
            else:
                problem: Any = self._problem  # torch's stub does not accept None
                future.set_exception(problem)

    def _move(self, chunked: ChunkedTensor) -> bool:
        """Send all chunks of a tensor, and fetch their results. Return False if the all-reduce has failed."""
        packed = chunked.packed
        if chunked.wire is not None:
            packed.copy_(chunked.tensor)
        control, layout = self._control, self._control.layout
        sent = fetched = rounds = 0
        chunks = chunked.chunks
        while fetched < len(chunks):
            if self._problem is not None:
                return False
            before = fetched + sent
            # A slot is free when all ranks have summed the chunk that used the slot before.
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
                _sleep(rounds)
        if chunked.wire is not None:
            chunked.tensor.copy_(chunked.wire)
        return True


def _sleep(rounds: int) -> None:
    """Yield the CPU in the first rounds, then sleep: the time doubles every 8 rounds, up to 1 ms."""
    asleep = rounds - _ROUNDS_AWAKE
    # The exponent is limited, so that the power stays small in a long wait.
    time.sleep(min(_SHORTEST_SLEEP_S * 2 ** min(asleep // 8, 10), _LONGEST_SLEEP_S) if asleep >= 0 else 0)
