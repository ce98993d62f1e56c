"""Compare intervals with a simple model: the set of their nanoseconds."""

from __future__ import annotations

import doctest
import time
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpudiag import intervals
from gpudiag.intervals import (
    EMPTY,
    Intervals,
    as_set,
    complement,
    groups,
    intersect,
    length,
    lengths_between,
    median,
    own_lengths,
    subtract,
    union,
)

TIMES = st.integers(-30, 30)
RAW = st.lists(st.tuples(TIMES, TIMES), max_size=12)
BOUNDS = st.lists(TIMES, min_size=1, max_size=8).map(sorted)


def points(a: Intervals) -> set[int]:
    return {t for start, end in a.pairs() for t in range(start, end)}


def is_normal(a: Intervals) -> bool:
    flat = [t for pair in a.pairs() for t in pair]
    return a.start.dtype == a.end.dtype == np.int64 and all(x < y for x, y in pairwise(flat))


def raw(pairs: list[tuple[int, int]]) -> Intervals:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Intervals(table[:, 0], table[:, 1])


def test_documented_examples_of_interval_functions() -> None:
    outcome = doctest.testmod(intervals)
    assert outcome.attempted >= 4
    assert outcome.failed == 0


@given(RAW, RAW)
def test_union_contains_every_argument(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both = union(raw(a), raw(b))
    assert is_normal(both)
    assert points(both) == points(raw(a)) | points(raw(b))


@given(RAW, st.integers(0, 10))
def test_bridged_union_also_covers_gaps_up_to_the_bridge(pairs: list[tuple[int, int]], bridge: int) -> None:
    plain, bridged = union(raw(pairs)), union(raw(pairs), bridge_ns=bridge)
    assert is_normal(bridged)
    gaps = zip(plain.end[:-1].tolist(), plain.start[1:].tolist(), strict=True)
    short = {t for end, start in gaps if start - end <= bridge for t in range(end, start)}
    assert points(bridged) == points(plain) | short


@given(RAW, RAW)
def test_intersection_and_difference_equal_set_operations(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    x, y = as_set(a), as_set(b)
    both, only = intersect(x, y), subtract(x, y)
    assert is_normal(both)
    assert is_normal(only)
    assert points(both) == points(x) & points(y)
    assert points(only) == points(x) - points(y)
    assert length(x) == length(both) + length(only) == len(points(x))


@given(RAW, TIMES, TIMES)
def test_complement_equals_set_operation(a: list[tuple[int, int]], begin: int, end: int) -> None:
    outside = complement(as_set(a), begin, end)
    assert is_normal(outside)
    assert points(outside) == set(range(begin, end)) - points(as_set(a))


@given(RAW, BOUNDS)
def test_lengths_between_counts_each_window(a: list[tuple[int, int]], bounds: list[int]) -> None:
    covered = points(as_set(a))
    counts = lengths_between(as_set(a), np.array(bounds, np.int64)).tolist()
    assert counts == [sum(begin <= t < end for t in covered) for begin, end in pairwise(bounds)]


@given(st.lists(st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9), min_size=1))
def test_median_equals_numpys_to_the_bit(values: list[float]) -> None:
    assert median(np.array(values)) == np.median(values)


def test_empty_sets_stay_empty() -> None:
    one = as_set([(1, 3)])
    for empty in (union(), union(EMPTY), as_set([]), as_set([(4, 4), (9, 2)]), intersect(one, EMPTY)):
        assert empty.pairs() == []
        assert empty.start.dtype == np.int64
    assert subtract(EMPTY, one).pairs() == []
    assert subtract(one, EMPTY).pairs() == [(1, 3)]
    assert complement(EMPTY, 2, 5).pairs() == [(2, 5)]
    assert complement(one, 5, 2).pairs() == []
    assert lengths_between(EMPTY, np.array([], np.int64)).tolist() == []


def test_interval_functions_are_exact_at_unix_nanoseconds() -> None:
    """64-bit floats have a resolution of 256 ns at Unix times."""
    now = 1_795_173_169_345_157_459
    assert length(as_set([(now, now + 1), (now + 1, now + 3), (now + 7, now + 8)])) == 4


@given(st.lists(st.integers(-3, 3)))
def test_groups_are_the_positions_of_each_value(values: list[int]) -> None:
    positions = {value: places.tolist() for value, places in groups(np.array(values, np.int64))}
    assert positions == {value: [i for i, one in enumerate(values) if one == value] for value in sorted(set(values))}
    assert list(positions) == sorted(positions)


def nested_by_hand(spans: list[tuple[int, int]]) -> list[int]:
    own = [end - start for start, end in spans]
    for child, (start, end) in enumerate(spans):
        around = [i for i in range(child) if spans[i][0] <= start and end <= spans[i][1] and spans[i][1] > start]
        if around:
            own[around[-1]] -= end - start
    return own


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=30))
def test_self_times_of_nested_spans(path: list[tuple[int, int]]) -> None:
    """Draw a tree of spans: after some open spans are closed, each new span begins within the last open span."""
    spans: list[tuple[int, int]] = []
    opened: list[tuple[int, int]] = []
    for offset, closed in path:
        for _ in range(min(closed, len(opened))):
            opened.pop()
        outer = opened[-1] if opened else (1000 * len(spans), 1000 * len(spans) + 900)
        last = max((end for start, end in spans if outer[0] <= start < outer[1] and (start, end) != outer), default=0)
        start = max(outer[0], last) + offset
        if start + 1 < outer[1]:
            span = (start, max(start + 1, min(outer[1], start + (outer[1] - start) // 2)))
            spans.append(span)
            opened.append(span)
    spans.sort(key=lambda span: (span[0], -span[1]))
    starts, ends = (np.array([span[i] for span in spans], np.int64) for i in (0, 1))
    assert own_lengths(starts, ends).tolist() == nested_by_hand(spans)


def test_deep_nesting_takes_linear_time() -> None:
    """One pass for each nesting level would take minutes, for 300,000 passes over 300,000 intervals."""
    count = 300_000
    start = np.arange(count, dtype=np.int64)
    begun = time.process_time()
    assert own_lengths(start, 2 * count - start).tolist() == [2] * (count - 1) + [2 * count - 2 * (count - 1)]
    assert time.process_time() - begun < 20
