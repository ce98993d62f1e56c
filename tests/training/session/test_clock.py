"""Test step times and their summary."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.training.session.clock import StepClock, host_clock, summarize


def counting_clock(instants: list[int]) -> tuple[StepClock, list[str]]:
    source, settled = iter(instants), list[str]()
    clock = StepClock(lambda: next(source), lambda begin, end: float(end - begin), lambda: settled.append("waited"))
    return clock, settled


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30))
def test_step_times_are_differences_between_marks(lengths: list[int]) -> None:
    clock, settled = counting_clock(list(itertools.accumulate(lengths, initial=0)))
    clock.restart()
    for _ in lengths:
        clock.mark()
    assert clock.read() == lengths
    assert settled == ["waited"]
    assert clock.read() == []


def test_time_before_restart_belongs_to_no_step() -> None:
    # The durations are two steps of 10 ms, a validation of 500 ms, and one step of 20 ms.
    clock, _ = counting_clock([0, 10, 20, 520, 540])
    clock.restart()
    clock.mark()
    clock.mark()
    clock.restart()
    clock.mark()
    assert clock.read() == [10, 10, 20]


def test_host_clock_is_monotonic() -> None:
    clock = host_clock()
    clock.restart()
    clock.mark()
    assert clock.read()[0] >= 0


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=50))
def test_summary_describes_its_steps(step_ms: list[float]) -> None:
    times = summarize(step_ms)
    assert times is not None
    assert times.median_ms == statistics.median(step_ms)
    assert min(step_ms) <= times.mean_ms * (1 + 1e-12)
    assert times.mean_ms <= max(step_ms) * (1 + 1e-12)
    assert times.standard_error_ms >= 0
    assert times.jitter_ms >= 0


def test_standard_error_is_that_of_the_mean() -> None:
    times = summarize([1.0, 4.0, 2.0, 3.0])
    assert times is not None
    assert times.standard_error_ms == pytest.approx(statistics.stdev([1, 2, 3, 4]) / math.sqrt(4))
    assert times.jitter_ms == pytest.approx(1.4826)
    assert summarize([]) is None
