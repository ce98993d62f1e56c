"""Test steps that are found in launches, and windows that are cut to common steps, with a few numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpudiag.analysis.timeline import build_timeline
from gpudiag.analysis.timeline.steps import (
    Windows,
    _busiest_thread,
    _repeating,
    common_steps,
    device_windows,
    host_windows,
)
from tests.timeline_builder import TraceBuilder


def repeating(launched: str) -> Any:
    """Return the steps found in launches of kernels, whose names are letters, one launch per 10 ns.

    Row numbers of the launches start at 5, and each thread has up to seven successive launches.
    """
    count = len(launched)
    events: Any = SimpleNamespace(
        start_ns=np.arange(count + 5) * 10, end_ns=np.arange(count + 5) * 10 + 4, thread=3 + np.arange(count + 5) // 7
    )
    return _repeating(events, np.arange(5, count + 5), np.array([ord(letter) for letter in launched], np.int32))


def starts(launched: str) -> list[int] | None:
    windows = repeating(launched)
    return None if windows is None else [(at - 50) // 10 for at in windows.start.tolist()]


@pytest.mark.parametrize(
    ("launched", "found"),
    [
        ("abc" * 3, [0, 3, 6]),
        ("xyabcabcabc", [2, 5, 8]),
        ("abxyzxyzxyz", [2, 5, 8]),
        ("ab" * 3, [0, 2, 4]),
        ("ab" * 2 + "a", None),  # fewer than six launches are no pattern
        ("abcd" * 2, None),  # two repetitions are no pattern
        ("aaaaaaaa", None),  # a name that never changes is no pattern
        ("aabaabaab", [2, 5, 8]),  # `a` occurs twice per step, one and two launches apart
        ("abcadeabcade" * 3, [1, 7, 13, 19, 25, 31]),  # each half of a step starts with `a`
        ("abcbd" * 3, [0, 5, 10]),
        ("abcdefgabcdefgabcdefg" + "z" * 18, [0, 7, 14]),
        ("abcdefgabcdefgabcdefg" + "z" * 23, None),  # the pattern covers less than half of the trace
        ("z" * 23 + "abcdefgabcdefgabcdefg", None),
        ("abcdef" + "abcdxxef" + "abcdef" + "abcdef", [0, 6, 14, 20]),  # the period may differ by two launches
        ("abcdef" + "abcdxxxef" + "abcdef" + "abcdef", None),
        ("", None),
    ],
)
def test_steps_recur_after_equal_numbers_of_launches(launched: str, found: list[int] | None) -> None:
    assert starts(launched) == found


def test_pattern_ends_with_the_last_launch() -> None:
    steps = repeating("abc" * 4)
    assert (steps.end, steps.source, steps.thread, steps.number.tolist()) == (164, "pattern", 3, [0, 1, 2, 3])


def test_period_tolerates_two_percent_of_launches() -> None:
    step = "".join(chr(1000 + at) for at in range(150))
    assert starts(step + step[:100] + "zzz" + step[100:] + step + step) == [0, 150, 303, 453]
    assert starts(step + "zzzz" + step + step + step) is None


def test_busiest_thread_has_the_most_launches() -> None:
    events: Any = SimpleNamespace(thread=np.array([7, 8, 8, 9, 9, 9]), rows_of=lambda *_: np.array([0, 1, 2]))
    assert _busiest_thread(events, np.arange(6)) == 9
    assert _busiest_thread(events, np.array([0])) == 7
    assert _busiest_thread(events, np.arange(0)) == 8
    events.rows_of = lambda *_: np.arange(0)
    assert _busiest_thread(events, np.arange(0)) == 0


def cut(*tracks: list[int]) -> list[tuple[list[int], list[int]]]:
    """Cut windows to common steps, for tracks given as step numbers; step n lasts from 10 n to 10 (n + 1)."""
    windows = [
        Windows(np.array([*(10 * one for one in of), 10 * of[-1] + 10] if of else []), np.array(of)) for of in tracks
    ]
    return [(step.bounds.tolist(), step.steps.tolist()) for step in common_steps(windows)]


def test_tracks_are_cut_to_common_steps() -> None:
    assert cut([1, 2, 3], [2, 3, 4]) == [([20, 30, 40], [2, 3])] * 2
    assert cut([1, 2, 3], [3, 4]) == [([30, 40], [3])] * 2
    assert cut([3, 4], [1, 2, 3], [2, 3, 4, 5]) == [([30, 40], [3])] * 3
    assert cut([1, 2], [3, 4]) == [([10, 20, 30], [1, 2]), ([30, 40, 50], [3, 4])]
    assert cut([1, 2], [], [1]) == [([10, 20, 30], [1, 2]), ([], []), ([10, 20], [1])]
    assert cut([1, 2]) == [([10, 20, 30], [1, 2])]
    # If a track lacks the steps of the other tracks, all tracks stay unchanged.
    assert cut([1, 9], [2, 3, 4]) == [([10, 90, 100], [1, 9]), ([20, 30, 40, 50], [2, 3, 4])]


@pytest.mark.parametrize(
    ("start", "bounds", "numbers"),
    [
        ([0, 10, 20, 30], [10, 20, 30], [6, 7]),
        ([0, 10, 20], [10, 20], [6]),
        ([0, 10], [0, 10], [5]),
        ([0], [0, 99], [5]),
        ([0, 10, 10, 20], [10, 20], [6]),  # a step of length zero does not count
        ([200], [200, 201], [5]),
    ],
)
def test_first_and_last_of_three_steps_are_left_out(start: list[int], bounds: list[int], numbers: list[int]) -> None:
    steps: Any = SimpleNamespace(start=np.array(start), number=np.arange(5, 5 + len(start)), end=99)
    windows = host_windows(steps)
    assert (windows.bounds.tolist(), windows.steps.tolist()) == (bounds, numbers)


def test_device_without_known_launches_has_one_window() -> None:
    ops: Any = SimpleNamespace(step=np.array([-1, -1]), start=np.array([30, 10]), end=np.array([35, 20]))
    steps: Any = SimpleNamespace(number=np.array([4]))
    windows = device_windows(ops, steps)
    assert (windows.bounds.tolist(), windows.steps.tolist()) == ([10, 35], [0])
    ops.end = np.array([10, 10])
    assert device_windows(ops, steps).bounds.tolist() == [10, 11]


def test_launches_without_a_pattern_are_one_step() -> None:
    (track,) = build_timeline(
        [TraceBuilder().compute(30, 50, launch=(7, 9)).compute(50, 60, "b", launch=(5, 6)).build()]
    ).tracks
    assert track.steps.source == "none"
    assert (track.steps.start.tolist(), track.steps.end, track.steps.number.tolist()) == ([5_000], 9_000, [0])


def test_steps_end_with_the_last_optimizers() -> None:
    trace = TraceBuilder()
    for number in range(4):
        trace.compute(100 * number, 100 * number + 50, launch=100 * number)
        trace.optimizer(100 * number + 60, 100 * number + 61 + number)
    (track,) = build_timeline([trace.build()]).tracks
    assert track.steps.source == "optimizer"
    assert track.steps.start.tolist() == [61_000, 162_000, 263_000, 364_000]
    assert track.steps.end == 364_000
