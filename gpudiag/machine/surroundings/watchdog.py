"""Run a reading with a time limit, because drivers and network file systems can block for minutes."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Reading(Generic[Value]):
    """A function that runs in a thread from the creation of this object on.

    The thread is a daemon, so that a call that blocks in the kernel does not keep this process alive.

    Args:
        what: name of the reading, with which the reason of a failure begins.
        read: the function.
        limit_s: time limit in seconds, from the creation on.
    """

    def __init__(self, what: str, read: Callable[[], Value], limit_s: float) -> None:
        self._what = what
        self._limit_s = limit_s
        self._deadline = time.perf_counter() + limit_s
        self._answers: queue.SimpleQueue[tuple[Value | None, str | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(read,), daemon=True).start()

    def _run(self, read: Callable[[], Value]) -> None:
        try:
            self._answers.put((read(), None))
        except subprocess.TimeoutExpired:
            self._answers.put((None, self._late()))
        except Exception as error:  # noqa: BLE001 # a reading that fails is one missing value
            self._answers.put((None, f"{self._what} failed: {type(error).__name__}: {error}"))

    def result(self) -> tuple[Value | None, str | None]:
        """Return (value, None), or (None, reason) if the function failed or does not end before the deadline."""
        try:
            return self._answers.get(timeout=max(0.0, self._deadline - time.perf_counter()))
        except queue.Empty:
            return None, self._late()

    def _late(self) -> str:
        return f"{self._what} did not answer within {self._limit_s:g} s"
