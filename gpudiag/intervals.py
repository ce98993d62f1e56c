"""Sets of half-open intervals [start, end) on integer nanoseconds, and of numbers, as sorted NumPy columns; medians.

A *set* here is normal: its intervals are sorted, disjoint, not touching and not empty. Every function returns a normal
set, so lengths add up exactly, to the nanosecond:

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
        """The intervals as Python pairs; for tests and messages, not for work."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def as_set(pairs: Iterable[tuple[int, int]]) -> Intervals:
    """A normal set from any pairs."""
    table = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return union(Intervals(table[:, 0], table[:, 1]))


def union(*parts: Intervals, bridge_ns: int = 0) -> Intervals:
    """Everything covered by at least one interval; gaps of at most `bridge_ns` are covered too.

    The parts may be unsorted, overlapping and empty: this is what makes a normal set of raw intervals.
    """
    filled = [part for part in parts if len(part)]
    if not filled:
        return EMPTY
    start, end = np.concatenate([part.start for part in filled]), np.concatenate([part.end for part in filled])
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    if len(start) == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A new interval begins where a start lies beyond everything that came before it.
    opens = np.concatenate([[True], start[1:] > reach[:-1] + bridge_ns])
    closes = np.concatenate([opens[1:], [True]])
    return Intervals(start[opens], reach[closes])


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both sets."""
    if len(a) == 0 or len(b) == 0:
        return EMPTY
    if len(a) > len(b):
        a, b = b, a
    # Interval j of b meets interval i of a when b.end > a.start and b.start < a.end: a run of consecutive j for each i.
    first = b.end.searchsorted(a.start, side="right")
    after = b.start.searchsorted(a.end, side="left")
    count = np.maximum(after - first, 0)
    of_a = np.repeat(np.arange(len(a)), count)
    of_b = np.arange(len(of_a)) + np.repeat(first - np.cumsum(count) + count, count)
    return Intervals(np.maximum(a.start[of_a], b.start[of_b]), np.minimum(a.end[of_a], b.end[of_b]))


def complement(a: Intervals, begin: int, end: int) -> Intervals:
    """What of [begin, end) lies outside the set."""
    inside = slice(a.end.searchsorted(begin, side="right"), a.start.searchsorted(end, side="left"))
    start, stop = np.concatenate([[begin], a.end[inside]]), np.concatenate([a.start[inside], [end]])
    kept = stop > start
    return Intervals(start[kept], stop[kept])


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """What lies in `a` but not in `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a.start[0]), int(a.end[-1])))


def length(a: Intervals) -> int:
    """Total length in nanoseconds."""
    return int((a.end - a.start).sum())


def lengths_between(a: Intervals, bounds: Times) -> Times:
    """Length of the set inside each of the k windows [bounds[i], bounds[i+1]): int64[k], for k + 1 sorted bounds.

    The windows tile, so the lengths of sets that partition time partition each window too.
    """
    covered = _covered_before(a, bounds)
    return covered[1:] - covered[:-1]


def lengths_inside(a: Intervals, start: Times, end: Times) -> Times:
    """Length of the set inside each of n spans [start, end), which may overlap and come in any order: int64[n]."""
    return _covered_before(a, end) - _covered_before(a, start)


def within(a: Intervals, time: Times) -> NDArray[np.bool_]:
    """bool[n]: which of n times lie in the set."""
    if len(a) == 0:
        return np.zeros(len(time), np.bool_)
    slot = a.start.searchsorted(time, side="right") - 1
    found: NDArray[np.bool_] = (slot >= 0) & (time < a.end[np.maximum(slot, 0)])
    return found


def _covered_before(a: Intervals, time: Times) -> Times:
    """How much of the set lies before each time: all intervals begun by then, or time less the gaps between them."""
    if len(a) == 0:
        return np.zeros(len(time), np.int64)
    done = np.concatenate([[0], np.cumsum(a.end - a.start)])
    gaps = np.concatenate([a.start[:1], a.end]) - done
    begun = a.start.searchsorted(time, side="right")
    covered: Times = np.minimum(np.maximum(time - gaps[begun], 0), done[begun])
    return covered


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """The distinct values of a column without NaN, sorted.

    As `np.unique`, which hashes since NumPy 2.3 what is sorted faster here: equal values mostly stand together. It also
    imports `numpy.ma` for that, which every process that reads traces would wait for.

    >>> distinct(np.array([7, 3, 7])).tolist()
    [3, 7]
    """
    return _without_repeats(np.sort(_without_repeats(values)))


def _without_repeats(values: NDArray[Number]) -> NDArray[Number]:
    """A column without the values that equal the one before them."""
    first = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def median(values: NDArray[Any]) -> float:
    """The median of a column without NaN; 0.0 of none.

    As `np.median`, which imports `numpy.ma` and takes ten times as long for a few values.

    >>> median(np.array([7, 3, 4])), median(np.array([7, 3, 4, 1]))
    (4.0, 3.5)
    """
    if not len(values):
        return 0.0
    half, ordered = len(values) // 2, np.sort(values)
    return (float(ordered[half - 1 + len(values) % 2]) + float(ordered[half])) / 2


def among(values: NDArray[np.integer[Any]], others: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """bool[n]: which of n integers are among others, where both are mostly in order and far apart: times, rows.

    `np.isin` makes both distinct first; where integers are dense (correlations) it looks them up in a table, faster.

    >>> among(np.array([7, 3, 7]), np.array([9, 7])).tolist()
    [True, False, True]
    """
    if len(others) == 0:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(others, kind="stable")
    place = np.minimum(ordered.searchsorted(values), len(ordered) - 1)
    found: NDArray[np.bool_] = ordered[place] == values
    return found


def groups(values: NDArray[np.integer[Any]]) -> list[tuple[int, NDArray[np.intp]]]:
    """Each distinct value of a column in order, with the places where it stands, in order.

    In one sort, whatever the number of values: a search for each of them would take the square of that time.

    >>> [(value, places.tolist()) for value, places in groups(np.array([7, 3, 7]))]
    [(3, [1]), (7, [0, 2])]
    """
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return list(zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True))


def own_lengths(start: Times, end: Times, lasts: Times | None = None) -> NDArray[np.int64]:
    """int64[n]: each interval without those that lie in it; sorted by start, the longer first.

    `lasts` is how much of each counts, where that is not all of it.

    Worked example. 0-10 holds 1-4 and 5-9, and 5-9 holds 6-7: own times are 3, 3, 3 and 1. An interval is as
    deep as intervals have begun before it and not ended (0, 1, 1, 2); its parent is the last before it one less deep.
    """
    lasts = end - start if lasts is None else lasts
    own = lasts.copy()
    count = len(start)
    depth = np.arange(count) - np.sort(end, kind="stable").searchsorted(start, side="right")
    children = np.flatnonzero(depth > 0)
    if len(children):
        # In order of (depth, place), the parent of (d, i) is the last of all before (d - 1, i).
        ordered = np.sort(depth * count + np.arange(count))
        found = ordered[ordered.searchsorted((depth[children] - 1) * count + children) - 1]
        np.subtract.at(own, found % count, lasts[children])
    least: NDArray[np.int64] = np.maximum(own, 0)
    return least
