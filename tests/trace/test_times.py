"""Test conversion of microseconds to exact nanoseconds; impossible times are repaired or removed, with a note."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.trace.readers.kineto.kinds_and_times import Times, nanoseconds
from tests.trace.documents import document, event, names, read_one

if TYPE_CHECKING:
    from pathlib import Path

_DAY_NS = 86_400 * 10**9


@given(st.integers(0, 3 * 10**18))
def test_nanoseconds_are_exact_within_float_microseconds(time_ns: int) -> None:
    written = float(f"{time_ns // 1000}.{time_ns % 1000:03d}")
    spacing_ns = float(np.spacing(written)) * 1000
    (read,) = nanoseconds(np.array([written])).tolist()
    assert abs(read - time_ns) <= spacing_ns / 2 + 0.5
    if spacing_ns < 1:
        assert read == time_ns


_us = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(_us, _us), max_size=40), st.lists(st.tuples(_us, _us), max_size=3))
def test_times_are_ordered_and_bounded_for_any_input(
    events: list[tuple[float, float]], recordings: list[tuple[float, float]]
) -> None:
    notes: list[str] = []
    start, length = (np.array([pair[side] for pair in events], dtype=np.float64) for side in (0, 1))
    times = Times.from_microseconds(start, length, recordings, notes)
    assert (np.diff(times.start_ns) >= 0).all()
    assert (times.end_ns >= times.start_ns).all()
    assert ((times.end_ns - times.start_ns) <= _DAY_NS + 1000).all()
    assert len(set(times.order.tolist())) == len(times.order) <= len(events)
    assert len(times.order) == len(events) or any("impossible times" in note for note in notes)
    if len(times.start_ns):
        assert times.start_ns[0] == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_equal_starts_are_ordered_by_length_then_file_order(
    events: list[tuple[int, int]],
) -> None:
    start, length = (np.array([pair[side] for pair in events], dtype=np.float64) for side in (0, 1))
    order = Times.from_microseconds(start, length, [], []).order.tolist()
    assert order == sorted(range(len(events)), key=lambda row: (events[row][0], -events[row][1], row))


def test_negative_durations_become_zero(tmp_path: Path) -> None:
    trace = read_one(tmp_path, document(event("cpu_op", "a", 10, -3), event("cpu_op", "b", 11, 1)))
    assert trace.events.end_ns.tolist() == [0, 2000]
    assert trace.notes == ("1 events had negative durations; taken as 0",)


def test_durations_and_starts_beyond_a_day_are_left_out(tmp_path: Path) -> None:
    good = [event("cpu_op", f"good{i}", 1.7e15 + i, 1) for i in range(5)]
    bad = [event("cpu_op", "long", 1.7e15, 1e300), event("cpu_op", "zero", 0, 1), event("cpu_op", "far", -1e300, 1)]
    trace = read_one(tmp_path, document(*good, *bad))
    assert names(trace) == [f"good{i}" for i in range(5)]
    assert trace.notes == ("3 events had impossible times (off by more than a day) and were left out",)


def test_event_longer_than_the_recording_is_cut_at_its_end(tmp_path: Path) -> None:
    span = event("Trace", "PyTorch Profiler (0)", 0, 1000, pid="Spans", tid="PyTorch Profiler")
    trace = read_one(
        tmp_path,
        document(span, event("user_annotation", "ProfilerStep#1", 100, 50_000), event("kernel", "old", -800, 1200)),
    )
    assert trace.events.end_ns.tolist() == [1_200_000, 1_800_000]
    assert trace.notes == ("1 events claim to last longer than the recording; cut at its end",)
