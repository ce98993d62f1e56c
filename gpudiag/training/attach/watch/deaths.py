"""When and how each process of the command ended, although another process is its parent.

A process that a signal ends cannot say so, and its peers report broken connections only. Linux makes a process's file
descriptor readable (pidfd) at the moment it ends, and as long as its parent has not asked for its exit status
`/proc/PID/stat` shows it. Launchers ask some ten times a second, so that it is mostly seen; else only when is known.
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

_EVERY_MS = 50
#: Descriptors that are opened for this at most.
_MOST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process has ended: when, of `time.time`, and with which wait status, None where that was not seen."""

    ended_s: float
    status: int | None

    @property
    def signal(self) -> int | None:
        """The signal that ended it; None for none, or where that is not known."""
        return self.status & 0x7F or None if self.status is not None else None

    @property
    def exit_code(self) -> int | None:
        """Its exit code; None where a signal ended it, or where that is not known."""
        return self.status >> 8 if self.status is not None and not self.signal else None


class DeathWatch:
    """Sees processes end, in a thread of gpudiag's own. Sees none where the system has no pidfd."""

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(os, "pidfd_open") else None
        self._watched: dict[int, int] = {}
        self._known: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpudiag-deaths", daemon=True)
        #: By process number.
        self.deaths: dict[int, Death] = {}

    def __enter__(self) -> DeathWatch:
        # Signals are for the main thread, which hands them on to the command.
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
        """Watch these processes, too."""
        for pid in pids:
            if self._poll is None or pid in self._known or len(self._watched) >= _MOST:
                continue
            self._known.add(pid)
            with contextlib.suppress(OSError):  # it has ended already, or is on another host
                descriptor = os.pidfd_open(pid)
                self._watched[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    def _run(self) -> None:
        while self._poll is not None and not self._over.is_set():
            ended = self._poll.poll(_EVERY_MS)
            if not ended:
                continue
            for descriptor, _ in ended:
                pid = self._watched.get(descriptor)
                self._poll.unregister(descriptor)
                if pid is not None:
                    self.deaths[pid] = Death(ended_s=time.time(), status=_status(pid))


def _status(pid: int) -> int | None:
    """Read the wait status of a process whose parent has not asked for it yet."""
    try:
        # The name in parentheses may hold anything; `exit_code` is the last field.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[-1]) if fields[0] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None
