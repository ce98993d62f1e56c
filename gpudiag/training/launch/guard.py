"""A small program between gpudiag and torchrun: whatever ends, nothing of the run is left behind.

    python guard.py PRIVATE_DIRECTORY COMMAND...

It adopts every orphan of the run (PR_SET_CHILD_SUBREAPER), so that all its processes stay its descendants: torchrun
starts each worker in a session of its own, and DataLoader workers are their children. When the command has ended,
when it is told to stop, or when gpudiag has died, however that came about (PR_SET_PDEATHSIG), it ends all of them
and removes the private directory. The exit code is the command's.

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

#: How often it looks.
_EVERY_S = 0.02

#: How long processes have to leave by themselves after SIGTERM.
_GRACE_S = 3.0

_told: list[int] = []


def main(arguments: list[str]) -> int:
    """Run the command to its end and clean up behind it."""
    private, command = Path(arguments[0]), arguments[1:]
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: _told.append(number))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            _told.append(signal.SIGTERM)
    try:
        child = subprocess.Popen(command)
        status = _wait(child.pid)
        _end_all(ask=status is None)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    return 1 if status is None else os.waitstatus_to_exitcode(status) & 0xFF


def _wait(pid: int) -> int | None:
    """The command's wait status, or None when told to stop before it has ended. Reaps adopted orphans meanwhile."""
    while not _told:
        reaped, status = _reap()
        if reaped == pid:
            return status
        if reaped == 0:
            time.sleep(_EVERY_S)
    return None


def _reap() -> tuple[int, int]:
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _end_all(*, ask: bool) -> None:
    """End every descendant: politely first if they are to be asked, and then for certain."""
    if ask:
        until = time.monotonic() + _GRACE_S
        for pid in _descendants():
            _signal(pid, signal.SIGTERM)
        while _descendants() and time.monotonic() < until:
            while _reap()[0]:
                pass
            time.sleep(_EVERY_S)
    while pids := _descendants():
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        while _reap()[0]:
            pass
        time.sleep(_EVERY_S)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants() -> list[int]:
    """All living descendants of this process, from /proc; zombies are not alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name in parentheses may hold anything; what follows its last ")" is state and parent.
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(entry.name) if state != "Z" else -int(entry.name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid > 0:
                found.append(pid)
            waiting.append(abs(pid))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
