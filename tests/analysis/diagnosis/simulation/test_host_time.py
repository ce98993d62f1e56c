"""Test how host time is classified, with values just below and above each limit. Times in µs, steps of 10 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpudiag.analysis.diagnosis.simulation.host_time import (
    analysed_span,
    before_first_ops,
    lengths_in_turn,
    slow_calls,
    split_untraced,
    untraced_stretches,
)
from gpudiag.analysis.timeline import build_timeline
from gpudiag.intervals import as_set
from tests.timeline_builder import LOADER, TraceBuilder

if TYPE_CHECKING:
    from gpudiag.intervals import Intervals
    from gpudiag.model.event import EventTable
    from gpudiag.model.timeline import DeviceTrack

COLLECTING = "gpudiag.gc"
Call = tuple[int, int, str]


def track_of(*calls: Call, steps: int = 5, thread: int = 1, device: bool = False) -> tuple[DeviceTrack, EventTable]:
    """Return a track whose steps have the same calls, and its events.

    Names that begin with `cuda` are runtime calls. The loader and garbage collection are ranges, all other names are
    operators. With a `device`, a kernel of 100 µs is launched at the start of each step.
    """
    trace = TraceBuilder()
    for step in range(steps):
        trace.step(step * 10_000).by(thread)
        if device:
            trace.compute(8, 108, launch=(2, 4))
        for begin, end, name in calls:
            kind = trace.runtime if name.startswith("cuda") else trace.operator
            (trace.annotation if name in {LOADER, COLLECTING} else kind)(begin, end, name)
    timeline = build_timeline([trace.build()])
    return timeline.tracks[0], timeline.traces[0].events


def in_second(spans: Intervals) -> list[tuple[int, int]]:
    """Return spans in the second step, in µs after its mark."""
    return [(a // 1000 - 10_000, b // 1000 - 10_000) for a, b in spans.pairs() if 10_000_000 <= a < 20_000_000]


def test_analysed_span_reaches_the_mark_after_the_last_step() -> None:
    track, _ = track_of((100, 9000, "mm"))
    assert analysed_span(track) == (10_000_000, 40_000_000)
    assert analysed_span(track_of((100, 9000, "mm"), steps=2)[0]) == (0, 10_000_000)
    assert analysed_span(track_of((100, 9000, "mm"), steps=1)[0]) == (0, 9_000_000)


def test_lengths_of_inverted_spans_are_zero() -> None:
    spans = as_set([(0, 10), (20, 30)])
    lengths = lengths_in_turn(spans, np.array([5, 12, 25, 40]), np.array([12, 25, 22, 50]))
    assert lengths.tolist() == [5, 5, 0, 0]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([(1000, 1500, "mm")], [(1000, 1500, "mm")]),
        ([(1000, 1499, "mm")], []),
        # A nested call splits its caller's interval; each interval belongs to the innermost call.
        ([(1000, 3000, "mm"), (1500, 1600, "add")], [(1000, 1500, "mm"), (1600, 3000, "mm")]),
        ([(1000, 3000, "mm"), (1499, 1600, "add")], [(1600, 3000, "mm")]),
        ([(1000, 3000, "mm"), (1010, 2990, "add")], [(1010, 2990, "add")]),
        # A slow launch waits for the full queue, and a wait for the device has its own class.
        ([(1000, 2000, "cudaLaunchKernel")], []),
        ([(900, 2100, "mm"), (1000, 2000, "cudaLaunchKernel")], []),
        ([(1000, 2000, "cudaMemcpyAsync")], []),
        ([(1000, 2000, "cudaDeviceSynchronize")], []),
        ([(1000, 2000, "cudaMalloc")], []),  # memory allocation is classified separately
        ([(1000, 2000, "cudaFree")], []),
        ([(1000, 2000, "cudaFuncGetAttributes")], [(1000, 2000, "cudaFuncGetAttributes")]),
        ([(100, 200, "mm"), (900, 1000, "add")], []),  # time between calls does not count
    ],
)
def test_slow_call_has_at_least_half_a_millisecond_of_self_time(
    calls: list[Call], found: list[tuple[int, int, str]]
) -> None:
    track, events = track_of((10, 20, "first"), *calls)
    slow = slow_calls(track, events, [1], *analysed_span(track))
    names = [events.name_of(int(row)) for row in slow.row]
    assert [(*span, name) for span, name in zip(in_second(slow.spans), names, strict=False)] == found
    assert len(slow.row) == 3 * len(found)


def test_slow_calls_are_in_given_threads_and_analysed_steps() -> None:
    track, events = track_of((1000, 3000, "mm"))
    assert len(slow_calls(track, events, [1], *analysed_span(track)).spans) == 3
    assert len(slow_calls(track, events, [2], *analysed_span(track)).spans) == 0
    # If a call crosses the edge of the analysed steps, only the part inside counts.
    track, events = track_of((10, 20, "add"), (9_000, 10_000, "mm"), (9_400, 9_450, "add"))
    assert [(a // 1000, b // 1000) for a, b in slow_calls(track, events, [1], *analysed_span(track)).spans.pairs()] == [
        (step * 10_000 + 9_450, step * 10_000 + 10_000) for step in (1, 2, 3)
    ]


def often(length: int, times: int, *within: Call) -> list[Call]:
    """Make `times` calls per step of `length` µs each, every one with the nested calls `within`."""
    begins = range(1000, 1000 + 1000 * times, 1000)
    return [call for at in begins for call in ((at, at + length, "mm"), *((at + a, at + b, c) for a, b, c in within))]


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        (often(100, 4), [(1000, 1100), (2000, 2100), (3000, 3100), (4000, 4100)]),
        (often(99, 4), []),
        (often(100, 3), []),  # four calls of one name are needed in a step
        ([*often(100, 2), (3000, 3100, "add"), (4000, 4100, "add")], []),
        (often(500, 1), [(1000, 1500)]),  # a single call counts from half a millisecond on
        (often(499, 1), []),
        # Python scalars are first converted to a tensor; nested calls of the conversion do not count as the operator's
        # time.
        (often(600, 1, (2, 5, "to")), [(1005, 1600)]),
        # A call that launches, copies or waits belongs to the device.
        (often(600, 4, (590, 595, "cudaLaunchKernel")), []),
        (often(600, 4, (5, 9, "cudaMemcpyAsync")), []),
        # Fetching a batch is input.
        ([(900, 6000, LOADER), *often(600, 4)], []),
    ],
)
def test_operator_without_runtime_calls_computes_on_the_cpu(calls: list[Call], found: list[tuple[int, int]]) -> None:
    track, events = track_of(*calls, device=True)
    assert not track.is_cpu
    slow = slow_calls(track, events, [1], *analysed_span(track))
    assert in_second(slow.spans) == found
    assert len(slow.spans) == 3 * len(found)


def test_half_a_millisecond_without_events_is_untraced() -> None:
    track, events = track_of((500, 1000, "mm"), (1500, 2000, "mm"), (2501, 9900, "mm"))
    begin, end = analysed_span(track)
    assert in_second(untraced_stretches(track, events, [1], begin, end)) == [(2000, 2501)]
    # Time from a mark to the first operator and time of fetching are not untraced time.
    track, events = track_of((2000, 3000, "mm"), (3000, 5000, LOADER), (5000, 9900, "mm"))
    assert in_second(untraced_stretches(track, events, [1], begin, end)) == []
    # A garbage collection of any length is untraced time.
    track, events = track_of((10, 3000, "mm"), (3100, 3200, COLLECTING), (3250, 3350, LOADER), (3600, 9900, "mm"))
    assert in_second(untraced_stretches(track, events, [1], begin, end)) == [(3100, 3200)]


def test_time_before_first_op_excludes_marked_time() -> None:
    track, events = track_of((2000, 9900, "mm"))
    assert in_second(before_first_ops(track, events)) == [(0, 2000)]
    track, events = track_of((500, 1000, COLLECTING), (2000, 9900, "mm"))
    assert in_second(before_first_ops(track, events)) == [(0, 500), (1000, 2000)]
    track, events = track_of((500, 1000, LOADER), (2000, 9900, "mm"))
    assert in_second(before_first_ops(track, events)) == [(1000, 2000)]


def test_untraced_time_is_split_into_before_first_op_long_and_short() -> None:
    track, events = track_of((2000, 3000, "mm"), (4000, 5000, "mm"), (5100, 9900, "mm"))
    before, until = np.array([10_000, 12_000, 14_000, 15_000]) * 1000, np.array([12_000, 14_000, 15_000, 15_100]) * 1000
    silent = np.array([2000.0, 1000.0, 0.0, 100.0]) * 1000
    lengths = split_untraced(track, events, [1], silent, (before, until))
    assert (lengths.before_first_op / 1000).tolist() == [2000, 0, 0, 0]
    assert (lengths.long / 1000).tolist() == [0, 1000, 0, 0]
    assert (lengths.short / 1000).tolist() == [0, 0, 0, 100]
    # The result never exceeds the untraced time.
    lengths = split_untraced(track, events, [1], silent / 4, (before, until))
    assert (lengths.before_first_op + lengths.long + lengths.short).tolist() == (silent / 4).tolist()
    assert min(lengths.before_first_op.min(), lengths.long.min(), lengths.short.min()) >= 0
    nothing = split_untraced(track, events, [1], 0 * silent, (before, until))
    assert [part.any() for part in (nothing.before_first_op, nothing.long, nothing.short)] == [False] * 3
