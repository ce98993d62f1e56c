"""Run a command to its end, and then end all its descendants and remove its private directory in any case.

    python guard.py PRIVATE_DIRECTORY COMMAND...

gpudiag starts this program, which starts torchrun or `starter.py`. The program adopts every orphan of the run
(PR_SET_CHILD_SUBREAPER).
So all processes of the run remain descendants of the program, although torchrun starts each worker in its own session.
The program cleans up when the command has ended, when a signal asks the program to stop, or when gpudiag has died
(PR_SET_PDEATHSIG). The program exits with the command's exit code.

The program is run as a file, and imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_POLL_S = 0.02
#: Seconds in which processes may exit after SIGTERM.
_GRACE_S = 3.0

#: Received signals that ask this program to stop.
_signals: list[int] = []


def main(arguments: list[str]) -> int:
    """Run the command to its end, clean up, and return its exit code; return 1 if a signal stopped this program."""
    private, command = Path(arguments[0]), arguments[1:]
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _signals.append(number))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # gpudiag died before the death signal was set
            _signals.append(signal.SIGTERM)
    try:
        child = subprocess.Popen(command)
        status = _wait(child.pid)
        _end_all(ask=status is None)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return 1 if status is None else os.waitstatus_to_exitcode(status) & 0xFF  # the code is negative after a signal


def _wait(pid: int) -> int | None:
    """Wait for the command, and reap orphans. Return the command's wait status; None if a signal asks to stop."""
    while not _signals:
        reaped, status = _reap()
        if reaped == pid:
            return status
        if reaped == 0:
            time.sleep(_POLL_S)
    return None


def _reap() -> tuple[int, int]:
    """Reap one ended child; return its process id and wait status. The process id is 0 if no child has ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _end_all(*, ask: bool) -> None:
    """End every descendant with SIGKILL. If `ask` is set, first send SIGTERM and wait up to `_GRACE_S`."""
    if ask:
        until = time.monotonic() + _GRACE_S
        _signal_all(signal.SIGTERM)
        while _descendants() and time.monotonic() < until:
            _reap_all()
            time.sleep(_POLL_S)
    while _descendants():
        _signal_all(signal.SIGKILL)
        _reap_all()
        time.sleep(_POLL_S)


def _reap_all() -> None:
    while _reap()[0]:
        pass


def _signal_all(number: int) -> None:
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """Return the process ids of all descendants of this process except zombies, from /proc."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in parentheses may contain anything. State and parent follow its last ")".
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry.name))
                if state == "Z":
                    zombies.add(int(entry.name))
    living: list[int] = []
    unvisited = [os.getpid()]
    while unvisited:
        for pid in children.get(unvisited.pop(), []):
            unvisited.append(pid)
            if pid not in zombies:
                living.append(pid)
    return living


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
