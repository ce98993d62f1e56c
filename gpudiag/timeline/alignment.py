"""Which collective of one rank is which of another, and how far apart their clocks are.

All participants of a symmetric collective (all-reduce, all-gather, …) leave together, whenever they came: measured on
one host, 0.4 to 13 µs apart in the median and at most 70 µs. So matched collectives *end* together, up to a constant
offset between clocks. Counting does not match them: captures begin and end at different instants on different ranks,
so the i-th of one is the (i + lag)-th of the other, and some have no partner. Ends in ms on two ranks whose captures
began one collective apart:

    rank 0      10.0   14.0   20.0   26.0
    rank 1             14.0   20.0   26.0   31.0        lag -1: differences 0, 0, 0;  lag 0: 4, 6, 6, 5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ends of one collective further apart than this (after the clock offset) are not one collective.
LEAST_TOLERANCE_NS = 300 * NS_PER_US
#: How many collectives one capture may have begun later than another.
_WIDEST_LAG = 256
#: Lags whose spread is within this factor of the best are equally good; the clocks then decide.
_EQUALLY_GOOD = 4.0


@dataclass(frozen=True, slots=True)
class Sequence:
    """One rank's collectives in one group, in order of start.

    Attributes:
        end: int64[n], ns.
        signature: int64[n], equal where operation and size are equal.
        symmetric: bool[n], True where all participants leave together (False for broadcast, reduce, send, …).
    """

    end: NDArray[np.int64]
    signature: NDArray[np.int64]
    symmetric: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.end)


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs (a[i], b[i]) of indices that are one collective; `offset_ns` = what b's clock shows more than a's.

    `residual_ns` is the median distance of matched ends after the offset was taken out; `ambiguous` when another
    pairing, by a different offset, would fit about as well.
    """

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    offset_ns: int
    residual_ns: int
    ambiguous: bool


def align(a: Sequence, b: Sequence, *, clocks_comparable: bool) -> Alignment:
    """Match two ranks' collectives of one group.

    Args:
        a, b: their collectives.
        clocks_comparable: True when both clocks count from a known common origin (they may still be a little off).
            Of pairings that fit equally well, the one with the smaller offset is then the right one.
    """
    candidates = _lags(a, b)
    if not candidates:
        return _nothing()
    finest = min(candidate.spread for candidate in candidates)
    good = [c for c in candidates if c.spread <= max(_EQUALLY_GOOD * finest, 20 * NS_PER_US)]
    if clocks_comparable:
        best = min(good, key=lambda c: (abs(c.offset), abs(c.lag)))
    else:
        best = min(good, key=lambda c: (-c.overlap, c.spread, abs(c.lag)))
    ambiguous = not clocks_comparable and len(good) > 1
    index_a = np.arange(max(0, -best.lag), min(len(a), len(b) - best.lag))
    index_b = index_a + best.lag
    distance = np.abs(b.end[index_b] - a.end[index_a] - best.offset)
    tolerance = max(LEAST_TOLERANCE_NS, int(8 * best.spread))
    one = (a.signature[index_a] == b.signature[index_b]) & ((distance <= tolerance) | ~a.symmetric[index_a])
    if one.mean() < 0.9:  # something is missing in the middle, so that no single lag fits
        nearest = [
            _by_nearest_end(a, b, offset) for offset in ({0, best.offset} if clocks_comparable else {best.offset})
        ]
        rival = max(nearest, key=lambda pairs: len(pairs[0]))
        if len(rival[0]) > one.sum():
            return _finish(a, b, rival[0], rival[1], ambiguous)
    return _finish(a, b, index_a[one], index_b[one], ambiguous)


@dataclass(frozen=True, slots=True)
class _Lag:
    lag: int
    overlap: int
    offset: int
    spread: float


def _lags(a: Sequence, b: Sequence) -> list[_Lag]:
    found = []
    shortest = min(len(a), len(b))
    least_overlap = max(1, shortest // 2)
    for lag in range(-min(_WIDEST_LAG, len(a)), min(_WIDEST_LAG, len(b)) + 1):
        low, high = max(0, -lag), min(len(a), len(b) - lag)
        if high - low < least_overlap:
            continue
        same = a.signature[low:high] == b.signature[low + lag : high + lag]
        if same.mean() < 0.75:
            continue
        same &= a.symmetric[low:high]
        if not same.any():
            continue
        difference = (b.end[low + lag : high + lag] - a.end[low:high])[same]
        offset = int(np.median(difference))
        found.append(_Lag(lag, high - low, offset, float(np.median(np.abs(difference - offset)))))
    return found


def _by_nearest_end(a: Sequence, b: Sequence, offset: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs that are each other's nearest in end time, of the same signature, within the tolerance."""
    keep_a, keep_b = np.flatnonzero(a.symmetric), np.flatnonzero(b.symmetric)
    if len(keep_a) == 0 or len(keep_b) == 0:
        empty = np.empty(0, np.intp)
        return empty, empty
    end_a, end_b = a.end[keep_a], b.end[keep_b] - offset
    to_b, to_a = _nearest(end_a, end_b), _nearest(end_b, end_a)
    mutual = to_a[to_b] == np.arange(len(end_a))
    close = np.abs(end_b[to_b] - end_a) <= LEAST_TOLERANCE_NS
    same = a.signature[keep_a] == b.signature[keep_b[to_b]]
    chosen = mutual & close & same
    return keep_a[chosen], keep_b[to_b[chosen]]


def _nearest(points: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.intp]:
    """Index in `among` (any order) of the value nearest to each point."""
    order = np.argsort(among, kind="stable")
    ordered = among[order]
    right = np.clip(np.searchsorted(ordered, points), 1, max(len(ordered) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(ordered) - 1)
    pick = np.where(np.abs(ordered[left] - points) <= np.abs(ordered[right] - points), left, right)
    return order[pick]


def _finish(
    a: Sequence, b: Sequence, index_a: NDArray[np.intp], index_b: NDArray[np.intp], ambiguous: bool
) -> Alignment:
    if len(index_a) == 0:
        return _nothing()
    difference = b.end[index_b] - a.end[index_a]
    symmetric = a.symmetric[index_a]
    if symmetric.any():
        difference = difference[symmetric]
    offset = int(np.median(difference))
    residual = int(np.median(np.abs(difference - offset)))
    return Alignment(index_a, index_b, offset, residual, ambiguous)


def _nothing() -> Alignment:
    empty = np.empty(0, np.intp)
    return Alignment(empty, empty, 0, 0, ambiguous=False)
