"""Test that the number of line events is bounded, and that the recording of events ends."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import pytest

from gpudiag.training.session.line_events import _MAX_THREAD_EVENTS, STEP
from gpudiag.training.session.line_log import LineLog

MONITORED = sys.version_info >= (3, 12)


def add(total: int, value: int) -> int:
    return total + value


def train() -> int:
    total = 0
    for value in range(20):
        total = add(total, value)
    return total


@pytest.mark.skipif(not MONITORED, reason="sys.settrace traces only the training thread")
def test_events_of_busy_thread_are_bounded() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            train()

    thread = threading.Thread(target=work)
    thread.start()
    log = LineLog()
    log.begin("alone")
    for _ in range(10):
        train()
        time.sleep(0.05)
        log.step()
    log.end()
    over.set()
    thread.join()
    ((_, entries, others),) = log.sections
    assert entries
    assert [len(more) for more in others.values()] == [_MAX_THREAD_EVENTS]


def test_other_thread_can_end_section() -> None:
    log = LineLog()
    log.begin("alone")
    train()
    log.step()
    thread = threading.Thread(target=log.end)
    thread.start()
    thread.join()
    ((_, entries, _),) = log.sections
    train()
    received = len(entries)
    train()
    assert len(entries) == received
    assert sys.gettrace() is None


def test_ended_section_does_not_remove_a_later_tracer() -> None:
    log = LineLog()
    log.begin("alone")
    train()
    log.end()
    assert sys.gettrace() is None

    def tracer(*_: object) -> None:
        return None

    sys.settrace(tracer)
    log.end()
    remaining = sys.gettrace()
    sys.settrace(None)
    assert remaining is tracer


def test_step_with_too_many_events_leaves_those_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpudiag.training.session.line_events._MAX_STEP_EVENTS", 100)
    log = LineLog()
    for step in range(6):
        if step:
            log.step()
        else:
            log.begin("alone")
        for _ in range(3):
            train()
    log.end()
    ((_, entries, _),) = log.sections
    here = sys._getframe().f_code
    steps = [index for index, entry in enumerate(entries) if entry[2] == STEP]
    for begin, end in itertools.pairwise(steps):
        assert sum(code is here for _, code, _ in entries[begin:end]) >= 1
        assert end - begin < 250
