"""Observe when and how each process of the command ends, although another process is its parent.

A process that a signal ends cannot report it, and its peers report broken connections only. Linux makes a process's
file descriptor (pidfd) readable when the process ends, and `/proc/PID/stat` has its exit status until its parent asks
for that. Launchers ask some ten times a second, so that the status is mostly seen; else only the time is known.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_POLL_MS = 50
#: Maximum number of descriptors opened.
_MAX_PROCESSES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a process: when, of `time.time`, and with which wait status, None if that was not seen."""

    ended_s: float
    status: int | None

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None for none, or if unknown."""
        return self.status & 0x7F or None if self.status is not None else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None if a signal ended it, or if unknown."""
        return self.status >> 8 if self.status is not None and not self.signal else None


class DeathWatch:
    """Observe processes in a thread of gpudiag's own. Sees no ends if the system has no pidfd.

    Attributes:
        deaths: by process number.
    """

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(os, "pidfd_open") else None
        self._watched: dict[int, int] = {}
        self._known: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpudiag-deaths", daemon=True)
        self.deaths: dict[int, Death] = {}

    def __enter__(self) -> DeathWatch:
        # Signals are for the main thread, which forwards them to the command.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Observe these processes, too."""
        for pid in pids:
            if self._poll is None or pid in self._known or len(self._watched) >= _MAX_PROCESSES:
                continue
            self._known.add(pid)
            with contextlib.suppress(OSError):  # it has ended already, or is on another host
                descriptor = os.pidfd_open(pid)
                self._watched[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    def _run(self) -> None:
        while self._poll is not None and not self._over.is_set():
            for descriptor, _ in self._poll.poll(_POLL_MS):
                pid = self._watched.get(descriptor)
                self._poll.unregister(descriptor)
                if pid is not None:
                    self.deaths[pid] = Death(ended_s=time.time(), status=_wait_status(pid))


def _wait_status(pid: int) -> int | None:
    """Return the wait status of a process whose parent has not asked for it yet."""
    try:
        # The name in parentheses may contain anything; `exit_code` is the last field.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[-1]) if fields[0] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None
