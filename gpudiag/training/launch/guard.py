"""A small program between gpudiag and torchrun that leaves nothing of the run behind, whatever ends.

    python guard.py PRIVATE_DIRECTORY COMMAND...

It adopts every orphan of the run (PR_SET_CHILD_SUBREAPER), so that all its processes stay its descendants: torchrun
starts each worker in a session of its own, and DataLoader workers are their children. When the command has ended, when
it is asked to stop, or when gpudiag has died (PR_SET_PDEATHSIG), it ends all of them and removes the private directory.
The exit code is the command's.

Needs nothing but the standard library, and is run as a file.
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
#: Time that processes have to exit after SIGTERM.
_GRACE_S = 3.0

_signals: list[int] = []


def main(arguments: list[str]) -> int:
    """Run the command to its end, and clean up after it."""
    private, command = Path(arguments[0]), arguments[1:]
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _signals.append(number))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            _signals.append(signal.SIGTERM)
    try:
        child = subprocess.Popen(command)
        status = _wait(child.pid)
        _end_all(ask=status is None)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return 1 if status is None else os.waitstatus_to_exitcode(status) & 0xFF


def _wait(pid: int) -> int | None:
    """Return the command's wait status, or None if a signal comes first. Reaps adopted orphans meanwhile."""
    while not _signals:
        reaped, status = _reap()
        if reaped == pid:
            return status
        if reaped == 0:
            time.sleep(_POLL_S)
    return None


def _reap() -> tuple[int, int]:
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _end_all(*, ask: bool) -> None:
    """End every descendant: with SIGTERM first if `ask`, and then with SIGKILL."""
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
    """Return all living descendants of this process, from /proc; zombies are not alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in parentheses may contain anything; after its last ")" come state and parent.
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry.name) if state != "Z" else -int(entry.name))
    living: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid > 0:
                living.append(pid)
            waiting.append(abs(pid))
    return living


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
