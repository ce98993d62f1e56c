from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from source_lines import collector
from source_lines.line_times import LineRecorder
from source_lines.records import LineTimes, SourceLine


def slow_helper() -> None:
    time.sleep(0.004)


def batches() -> Iterator[int]:
    number = 0
    while True:
        time.sleep(0.002)
        yield number
        number += 1


def fails() -> None:
    time.sleep(0.001)
    raise ValueError


def busy(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def train(recorder: LineRecorder, steps: int, spins: int = 0) -> None:
    for batch in batches():
        slow_helper()
        with contextlib.suppress(ValueError):
            fails()
        if batch % 2:
            time.sleep(0.003)
        busy(spins)
        recorder.step()
        if batch == steps:
            break


def recorded(steps: int = 8, spins: int = 0) -> LineTimes:
    recorder = LineRecorder()
    try:
        train(recorder, steps, spins)
    finally:
        recorder.stop()
    times = recorder.times()
    assert times is not None
    return times


def by_text(lines: tuple[SourceLine, ...]) -> dict[str, SourceLine]:
    found: dict[str, SourceLine] = {}
    for line in lines:
        found |= {line.text: line} | by_text(line.children)
    return found


def test_each_line_has_the_time_that_it_takes() -> None:
    times = recorded()
    found = by_text(times.lines)
    assert times.steps == 8
    assert found["slow_helper()"].ms >= 4.0
    assert found["time.sleep(0.004)"].ms >= 4.0
    assert found["time.sleep(0.004)"].function == "slow_helper"
    assert found["for batch in batches():"].ms >= 2.0
    assert found["time.sleep(0.003)"].steps_with == 4
    assert found["fails()"].ms >= 1.0
    # Each is at least what it sleeps, and together they are the step.
    parts = found["slow_helper()"].ms + found["for batch in batches():"].ms + found["time.sleep(0.003)"].ms
    assert parts + found["fails()"].ms <= times.step_ms * 1.001


def test_functions_of_many_lines_are_measured_as_a_whole() -> None:
    times = recorded(steps=8, spins=3000)
    assert "busy" in times.coarse
    # After the first steps no line of it is told apart any more, and its time stays with its caller.
    whole = by_text(times.lines)["busy(spins)"]
    assert whole.ms > 0
    assert times.events_per_step < 3000


def test_no_line_is_collected_after_the_end() -> None:
    recorded(steps=3)
    assert sys.gettrace() is None
    if hasattr(sys, "monitoring"):
        assert all(sys.monitoring.get_tool(tool) is None for tool in (3, 4))


def test_existing_tracer_is_kept() -> None:
    def tracer(*_: object) -> None:
        return None

    sys.settrace(tracer)
    try:
        recorder = LineRecorder()
        recorder.step()
        recorder.stop()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)
    assert "debugger" in recorder.unavailable
    assert recorder.times() is None


def test_a_step_of_endless_lines_stops_collecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "MOST_EVENTS", 2000)
    recorder = LineRecorder()
    train(recorder, 2, spins=20_000)
    recorder.stop()
    assert recorder._log.overflowed
    assert len(recorder._log.entries) < 40_000


def test_other_threads_do_not_disturb_the_training_threads_lines() -> None:
    over = threading.Event()

    def beside() -> None:
        while not over.is_set():
            busy(10)

    other = threading.Thread(target=beside)
    other.start()
    try:
        times = recorded(steps=4)
    finally:
        over.set()
        other.join()
    assert "busy(10)" not in by_text(times.lines)
