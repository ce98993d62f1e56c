"""Test that the guard ends all processes, whichever process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpudiag.training.launch.guard as guard_module

if TYPE_CHECKING:
    from collections.abc import Callable

GUARD = str(guard_module.__file__)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="the guard rests on Linux's process controls"),
]

#: This program starts a grandchild in a separate session, as torchrun does, and writes both process ids.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {grandchild!r}], start_new_session=True)
open(sys.argv[1] + ".part", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
{then}
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 120) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def start(tmp_path: Path, *, then: str, grandchild: str = STUBBORN) -> tuple[list[str], Path, Path]:
    private, pids = tmp_path / "private", tmp_path / "pids"
    private.mkdir()
    (private / "left").write_text("temporary")
    program = FAMILY.format(grandchild=grandchild, then=then)
    return [sys.executable, "-I", GUARD, str(private), sys.executable, "-c", program, str(pids)], private, pids


def read_pids(path: Path) -> list[int]:
    assert eventually(path.exists)
    return [int(word) for word in path.read_text(encoding="utf-8").split()]


def test_exit_code_is_the_commands_and_orphans_are_ended(tmp_path: Path) -> None:
    words, private, pids = start(tmp_path, then="sys.exit(7)")
    assert subprocess.run(words, timeout=120, check=False).returncode == 7
    assert not any(alive(pid) for pid in read_pids(pids))
    assert not private.exists()


def test_command_ended_by_signal_fails(tmp_path: Path) -> None:
    words, _, _ = start(tmp_path, then="os.kill(os.getpid(), 9)")
    assert subprocess.run(words, timeout=120, check=False).returncode != 0


def test_guard_ends_processes_that_ignore_sigterm(tmp_path: Path) -> None:
    words, private, pids = start(tmp_path, then="time.sleep(600)")
    guard = subprocess.Popen(words)
    family = read_pids(pids)
    time.sleep(0.2)  # wait until the grandchild ignores SIGTERM
    assert all(alive(pid) for pid in family)
    guard.terminate()
    assert guard.wait(120) != 0
    assert not any(alive(pid) for pid in family)
    assert not private.exists()


def test_guard_ends_everything_when_parent_is_killed(tmp_path: Path) -> None:
    words, private, pids = start(tmp_path, then="time.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", f"import subprocess, time; subprocess.Popen({words!r}).wait()"])
    family = read_pids(pids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(120)
    assert eventually(lambda: not any(alive(pid) for pid in family))
    assert eventually(lambda: not private.exists())
