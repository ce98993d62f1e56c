"""Run numbered tasks in forked processes that end when this process ends."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

#: Maximum delay of an interrupt in seconds. Another thread may receive SIGINT, but Python handles signals in the main
#: thread, which therefore waits for the readers for at most this time.
_INTERRUPT_S = 0.5


class ReaderKilledError(Exception):
    """A reader process ended before it sent its result."""


class ForkedReaders(Generic[Result]):
    """Run tasks in forks of this process, because forks need not import anything again.

    Use this class as a context manager. On exit it kills all readers, so call `results` first.

    Args:
        workers: maximum number of processes.
        task: function that a reader calls with the number of a task; its result must be picklable.
    """

    def __init__(self, workers: int, task: Callable[[int], Result]) -> None:
        self._workers = workers
        self._task = task
        self._processes: dict[Connection[Any, Any], Any] = {}
        self._waiting: list[int] = []
        self._results: dict[int, Result] = {}
        self._tasks = 0

    def __enter__(self) -> ForkedReaders[Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()

    def start(self, tasks: int) -> None:
        """Start the readers on the tasks 0 to `tasks` - 1."""
        self._tasks = tasks
        self._waiting = list(reversed(range(tasks)))
        context = get_context("fork")
        for _ in range(min(self._workers, tasks)):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._read, args=(theirs, [*self._processes, ours]), daemon=True)
            with warnings.catch_warnings(), _interrupts_delayed():
                # Python 3.12 warns if a process with native threads forks. Readers do not use NumPy's threads.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
                self._processes[ours] = process
            theirs.close()
            ours.send(self._waiting.pop())

    def results(self) -> list[Result]:
        """Wait for all tasks, and return their results in order.

        Raises:
            ReaderKilledError: a reader ended before it sent its result.
            Exception: any exception that a task raised.
        """
        while len(self._results) < self._tasks:
            for ready in wait(list(self._processes), timeout=_INTERRUPT_S):
                assert isinstance(ready, Connection)  # noqa: S101  # nothing else is waited for
                self._receive(ready)
        return [self._results[number] for number in range(self._tasks)]

    def _receive(self, connection: Connection[Any, Any]) -> None:
        """Store a reader's result, and send the reader its next task."""
        try:
            number, result, error = connection.recv()
            if error is None and self._waiting:
                connection.send(self._waiting.pop())
        except (EOFError, OSError) as cause:
            raise ReaderKilledError from cause
        if error is not None:
            raise error
        self._results[number] = result

    def _read(self, connection: Connection[Any, Any], inherited: list[Connection[Any, Any]]) -> None:
        """Run the tasks whose numbers arrive on `connection`, until the parent process ends.

        `inherited` has the parent's ends of all pipes that this process inherited open.
        """
        gc.freeze()  # collecting garbage would copy the pages of all objects that the parent shares
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the inherited handler would ignore it (`_interrupts_delayed`)
        for end in inherited:  # a reader notices the parent's exit only if no other process keeps the parent's end open
            end.close()
        with contextlib.suppress(EOFError, OSError):
            while True:
                number = connection.recv()
                answer: tuple[int, Result | None, Exception | None]
                try:
                    answer = (number, self._task(number), None)
                except Exception as error:  # noqa: BLE001  # raised again in the parent
                    answer = (number, None, error)
                connection.send(answer)


@contextlib.contextmanager
def _interrupts_delayed() -> Iterator[None]:
    """Delay SIGINT within the block, so that every forked process is registered and can be killed.

    Blocking the signal in this thread does not suffice: if a native thread receives it, Python still handles it here.
    In a callback after a fork, such as the one that releases the lock of `logging`, `KeyboardInterrupt` would be lost.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # Python handles no signal in this thread, or the handler cannot be replaced
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received:
            signal.raise_signal(signal.SIGINT)
