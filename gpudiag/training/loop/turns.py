"""Let several training loops of one process train alternately, in turns of some steps.

Each loop has a thread, which waits for the loop's next turn in the loop's session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from gpudiag.errors import WorkerFailedError
from gpudiag.training.session.clock import StepClock

T = TypeVar("T")

_local = threading.local()


class TurnsOver(BaseException):
    """End the user's function after the last turn of its loop, without running the code after the loop."""


class JobTurns:
    """The turns of one job. In a turn (`block`) the job trains some steps, while all other loops of the process wait.

    Args:
        train: function that trains within `gpudiag.profile()`.
        save: function that saves settings that jobs may change, and returns a function that restores them.
    """

    def __init__(self, train: Callable[[], object], save: Callable[[], Callable[[], None]]) -> None:
        self._train, self._save = train, save
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._left = self._timed = 0  # steps left in this turn, and number of timed steps at its end
        self._ended = False
        self._times: list[float] = []
        self._error: Exception | None = None

    def block(self, steps: int, *, run_in: int) -> list[float]:
        """Train `run_in` untimed steps, then `steps` timed steps. Return their times in ms. Raise errors of the job."""
        self._left, self._timed = run_in + steps, steps
        restore = self._save()  # the job's turn may change settings of the caller
        if self._thread.ident is None:  # this is the first turn
            self._thread.start()
        self._go.release()
        self._done.acquire()
        restore()
        if self._error is not None:
            raise self._error
        return self._times

    def end(self) -> None:
        """End the job's loop, and wait until its thread has ended."""
        self._ended = True
        self._go.release()
        if self._thread.ident is not None:
            self._thread.join()
        self._train = _nothing  # the old function may keep objects of the job alive

    def steps(self, loader: Iterable[T], clock: StepClock) -> Iterator[T]:
        """Yield batches in the job's turns, and time its steps. The session calls this method in the job's thread."""
        iterator = iter(loader)
        clock.restart()  # the time between two loops belongs to no step
        while True:
            if not self._left:  # the turn is over
                self._times = clock.read()
                self._wait()
            if self._left == self._timed:  # the untimed steps are over
                clock.restart()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            yield batch
            if self._left <= self._timed:
                clock.mark()
            self._left -= 1

    def _wait(self) -> None:
        """End this turn, wait for the next, and exchange settings; raise TurnsOver if the loop must end."""
        restore = self._save()
        self._done.release()
        self._go.acquire()
        restore()
        if self._ended:
            raise TurnsOver

    def _run(self) -> None:
        """Train in the job's thread. Store an error, which `block` raises."""
        _local.turns = self
        self._go.acquire()
        try:
            if not self._ended:
                self._train()
                self._error = WorkerFailedError("its loop ended before its turns", "Let it train over more batches.")
        except TurnsOver:
            pass
        except Exception as error:  # noqa: BLE001  # raised by `block`
            self._error = error
        self._done.release()


def own_turns() -> JobTurns | None:
    """Return the turns of the job that trains in this thread; None if the job does not take turns."""
    return getattr(_local, "turns", None)


def _nothing() -> None:
    return
