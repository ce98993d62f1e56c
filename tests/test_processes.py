"""Work beside this process's own: the same value and errors, whatever becomes of the process; and none is left."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from gpudiag import processes
from gpudiag.errors import UnreadableInputError
from gpudiag.processes import Background, can_fork

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_fork():
        pytest.skip("forking needs Linux and a single thread")
    monkeypatch.setattr(processes, "usable_cpus", lambda: 2)


def _no_child_is_left() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def test_the_value_comes_from_another_process_and_is_worked_out_once() -> None:
    background = Background(os.getpid)
    assert background.result() == background.result() != os.getpid()
    assert _no_child_is_left()


@pytest.mark.parametrize("alone", ["not worth it", "one processor", "threads"])
def test_where_forking_does_not_help_it_is_worked_out_here(alone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if alone == "one processor":
        monkeypatch.setattr(processes, "usable_cpus", lambda: 1)
    if alone == "threads":
        monkeypatch.setattr(processes, "can_fork", lambda: False)
    assert Background(os.getpid, worth=alone != "not worth it").result() == os.getpid()


def test_what_the_work_raises_is_raised_where_it_is_asked_for() -> None:
    def work() -> int:
        raise UnreadableInputError("broken", "a remedy")

    background = Background(work)
    with pytest.raises(UnreadableInputError, match="broken"):
        background.result()
    assert _no_child_is_left()


def test_when_its_process_is_killed_it_is_worked_out_here() -> None:
    parent = os.getpid()

    def work() -> int:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert Background(work).result() == parent
    assert _no_child_is_left()


@pytest.mark.parametrize("work", [os.getpid, signal.pause])
def test_when_nobody_asks_no_process_is_left(work: Callable[[], object]) -> None:
    background = Background(work)
    del background
    assert _no_child_is_left()
