"""Compute with sets of half-open intervals [start, end) in integer nanoseconds, and with NumPy columns.

In a *normal* set the intervals are sorted, disjoint, not adjacent and not empty. Every function that returns a set
returns a normal set, so that lengths add up exactly. All functions except `union` require normal sets as arguments.

    >>> a = union(as_set([(0, 4), (2, 6), (9, 12)]))
    >>> a.pairs()
    [(0, 6), (9, 12)]
    >>> b = as_set([(5, 10)])
    >>> intersect(a, b).pairs(), subtract(a, b).pairs()
    ([(5, 6), (9, 10)], [(0, 5), (10, 12)])
    >>> length(a) == length(intersect(a, b)) + length(subtract(a, b))
    True
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)


class Intervals(msgspec.Struct, frozen=True):
    """Columns `start` and `end` (int64, ns) of equal length."""

    start: Times
    end: Times

    def __len__(self) -> int:
        return len(self.start)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the intervals as Python pairs, for tests and messages."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def as_set(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """Return the normal set of (start, end) pairs, which may overlap and be in any order."""
    table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return union(Intervals(table[:, 0], table[:, 1]))


def union(*sets: Intervals, bridge_ns: int = 0) -> Intervals:
    """Return the union as a normal set; gaps of at most `bridge_ns` are covered too.

    The arguments may be unsorted, overlapping and empty.
    """
    filled = [intervals for intervals in sets if len(intervals)]
    if not filled:
        return EMPTY
    start = np.concatenate([intervals.start for intervals in filled])
    end = np.concatenate([intervals.end for intervals in filled])
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A new interval begins where a start lies beyond all earlier ends.
    opens = np.concatenate([[True], start[1:] > reach[:-1] + bridge_ns])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], reach[closes])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the intersection of two sets."""
    if len(a) == 0 or len(b) == 0:
        return EMPTY
    if len(a) > len(b):
        a, b = b, a
    # Interval j of b overlaps interval i of a if b.end[j] > a.start[i] and b.start[j] < a.end[i]. For each i, the
    # overlapping intervals are consecutive: first[i] <= j < after[i].
    first = b.end.searchsorted(a.start, side="right")
    after = b.start.searchsorted(a.end, side="left")
    count = np.maximum(after - first, 0)
    # Pairs (i, j) are listed by i, then j. For interval i, j = first[i] + (number of the pair) - (pairs of earlier i).
    in_a = np.repeat(np.arange(len(a)), count)
    in_b = np.arange(len(in_a)) + np.repeat(first - np.cumsum(count) + count, count)
    return Intervals(np.maximum(a.start[in_a], b.start[in_b]), np.minimum(a.end[in_a], b.end[in_b]))


def complement(a: Intervals, begin: int, end: int) -> Intervals:
    """Return the part of [begin, end) outside the set."""
    # The intervals that overlap [begin, end) are consecutive.
    inside = slice(a.end.searchsorted(begin, side="right"), a.start.searchsorted(end, side="left"))
    start, stop = np.concatenate([[begin], a.end[inside]]), np.concatenate([a.start[inside], [end]])
    kept = stop > start
    return Intervals(start[kept], stop[kept])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the difference `a` without `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a.start[0]), int(a.end[-1])))


def length(a: Intervals) -> int:
    """Return the total length in nanoseconds."""
    return int((a.end - a.start).sum())


def lengths_between(a: Intervals, bounds: Times) -> Times:
    """Return the covered length in each window [bounds[i], bounds[i+1]), as int64[k] for k + 1 sorted bounds."""
    covered = _covered_before(a, bounds)
    return covered[1:] - covered[:-1]


def lengths_inside(a: Intervals, start: Times, end: Times) -> Times:
    """Return the covered length in each of n spans [start, end), which may overlap, as int64[n]."""
    return _covered_before(a, end) - _covered_before(a, start)


def within(a: Intervals, time: Times) -> NDArray[np.bool_]:
    """Return whether each of n times lies in the set, as bool[n]."""
    if len(a) == 0:
        return np.zeros(len(time), np.bool_)
    slot = a.start.searchsorted(time, side="right") - 1
    inside: NDArray[np.bool_] = (slot >= 0) & (time < a.end[np.maximum(slot, 0)])
    return inside


def _covered_before(a: Intervals, time: Times) -> Times:
    """Return the covered length before each time: the smaller of (time - gaps) and the length of begun intervals."""
    if len(a) == 0:
        return np.zeros(len(time), np.int64)
    # done[k] and gaps[k] are the covered and uncovered times before the end of k intervals; gaps[0], before the first.
    # `time - gaps[0]` is negative before the first interval, where the covered length is 0.
    done = np.concatenate([[0], np.cumsum(a.end - a.start)])
    gaps = np.concatenate([a.start[:1], a.end]) - done
    begun = a.start.searchsorted(time, side="right")
    covered: Times = np.minimum(np.maximum(time - gaps[begun], 0), done[begun])
    return covered


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """Return the sorted distinct values of a column, which must not contain NaN.

    `np.unique` imports `numpy.ma`. Since NumPy 2.3 `np.unique` also hashes, which is slower if most equal values are
    adjacent.

    >>> distinct(np.array([7, 3, 7])).tolist()
    [3, 7]
    """
    return _without_repeats(np.sort(_without_repeats(values)))  # sorting is faster without adjacent repeats


def _without_repeats(values: NDArray[Number]) -> NDArray[Number]:
    """Drop values that equal the previous value."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def median(values: NDArray[Any]) -> float:
    """Return the median of a column, which must not contain NaN; 0.0 for an empty column.

    `np.median` imports `numpy.ma` and takes ten times as long for a few values.

    >>> median(np.array([7, 3, 4])), median(np.array([7, 3, 4, 1]))
    (4.0, 3.5)
    """
    if not len(values):
        return 0.0
    half, ordered = len(values) // 2, np.sort(values)
    lower = half - 1 + len(values) % 2  # equals `half` for an odd length
    return (float(ordered[lower]) + float(ordered[half])) / 2


def among(values: NDArray[np.integer[Any]], others: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return whether `others` contains each of n integers, as bool[n].

    This is fast for sparse, mostly sorted columns (times, rows). For dense columns (correlation ids) `np.isin` is
    faster.

    >>> among(np.array([7, 3, 7]), np.array([9, 7])).tolist()
    [True, False, True]
    """
    if len(others) == 0:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(others, kind="stable")
    position = np.minimum(ordered.searchsorted(values), len(ordered) - 1)
    is_among: NDArray[np.bool_] = ordered[position] == values
    return is_among


def groups(values: NDArray[np.integer[Any]]) -> list[tuple[int, NDArray[np.intp]]]:
    """Return each distinct value of a column with its positions; values and positions ascend.

    >>> [(value, positions.tolist()) for value, positions in groups(np.array([7, 3, 7]))]
    [(3, [1]), (7, [0, 2])]
    """
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return list(zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True))


def outermost(start: Times, end: Times) -> NDArray[np.bool_]:
    """Return whether each of n spans begins outside of all earlier spans, as bool[n]. Starts ascend, ties longer first.

    >>> outermost(np.array([0, 1, 5]), np.array([5, 3, 6])).tolist()
    [True, False, True]
    """
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    outside: NDArray[np.bool_] = start >= reach
    return outside


def own_lengths(start: Times, end: Times, lasts: Times | None = None) -> NDArray[np.int64]:
    """Return each interval's length without its nested intervals, as int64[n].

    Intervals nest properly, sorted by start (ties: longer first). `lasts` replaces the intervals' lengths (ns).

    Worked example. 0-10 contains 1-4 and 5-9, and 5-9 contains 6-7: the self times are 3, 3, 3 and 1. The depth of an
    interval is the number of intervals that began before it and have not ended (0, 1, 1, 2). The parent of an interval
    is the last earlier interval whose depth is one less.
    """
    lasts = end - start if lasts is None else lasts
    self_ns = lasts.copy()
    count = len(start)
    depth = np.arange(count) - np.sort(end, kind="stable").searchsorted(start, side="right")
    children = np.flatnonzero(depth > 0)
    if len(children):
        # In the order of (depth, position), the parent of interval (d, i) is the last entry before (d - 1, i).
        ordered = np.sort(depth * count + np.arange(count))
        parents = ordered[ordered.searchsorted((depth[children] - 1) * count + children) - 1]
        np.subtract.at(self_ns, parents % count, lasts[children])  # % count: the position of (depth, position)
    least: NDArray[np.int64] = np.maximum(self_ns, 0)  # `lasts` may be less than the nested intervals' sum
    return least
