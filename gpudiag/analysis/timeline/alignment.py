"""Match the collectives of two ranks, and find the offset between their clocks.

All participants of a symmetric collective (all-reduce, all-gather, …) leave together, regardless of when they arrive.
On one host, they left 0.4 to 13 µs apart in the median, at most 70 µs. Therefore matched collectives *end* together,
up to a constant offset between clocks. Matching by index fails, because the recorded spans (captures) of ranks begin
and end at different times, so that some collectives have no partner. Example: the ends of collectives in ms, if the
captures begin one collective apart:

    rank 0      10.0   14.0   20.0   26.0
    rank 1             14.0   20.0   26.0   31.0        rank 1 - rank 0: 0 ms in 3 pairs, 6 ms in 2, 4 and 5 ms in 1

The offset with which most collectives end together is chosen. Periodic collectives fit several offsets (here 0 and 6
ms). If the clocks have a common origin, the smallest of these offsets is the right offset.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.timeline.calibration import (
    EQUALLY_GOOD,
    FINEST_SPREAD_NS,
    LEAST_TOLERANCE_NS,
    MATCHED_SHARE,
    NEARLY_ALL,
    TELLING,
    TO_MOVE_A_CLOCK,
)
from gpudiag.intervals import median
from gpudiag.model.timeline import SAME_CLOCK_NS

#: Maximum number of collectives by which one capture may begin later than another.
_WIDEST_LAG = 256
#: Maximum number of collectives that vote on the offset, which limits the time for long captures.
_VOTERS = 512
#: Maximum number of candidate offsets, besides 0, that are evaluated in full.
_MOST_CANDIDATES = 8


class CollectiveSequence(msgspec.Struct, frozen=True):
    """A rank's collectives in one group, in order of start.

    Attributes:
        start, end: int64[n], ns.
        signature: int64[n], index of each collective's combination of operation and size.
        symmetric: bool[n], whether all participants leave together (False for broadcast, reduce, send, …).
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    signature: NDArray[np.int64]
    symmetric: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.end)


class Alignment(msgspec.Struct, frozen=True):
    """Matched collectives of two ranks: a[i] and b[i] are the indices of the same collective.

    Attributes:
        offset_ns: clock of b minus clock of a.
        residual_ns: median distance between matched ends after the offset is removed.
        ambiguous: whether another pairing with a different offset fits about as well.
    """

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    offset_ns: int
    residual_ns: int
    ambiguous: bool


def align(a: CollectiveSequence, b: CollectiveSequence, *, clocks_comparable: bool) -> Alignment:
    """Match two ranks' collectives of one group.

    Rooted collectives (broadcast, reduce, …) are matched by their position between matched symmetric collectives,
    because their root may leave early. A group without symmetric collectives is not matched.

    Args:
        a, b: the collectives of the two ranks.
        clocks_comparable: whether both clocks count from a known common origin, up to a small error. If so, of several
            pairings that fit equally well, the pairing with the smallest offset is chosen.
    """
    candidates = _offsets(a, b, LEAST_TOLERANCE_NS, clocks_comparable)
    fits = [_fit(a, b, offset, LEAST_TOLERANCE_NS) for offset in candidates]
    good = _equally_good([fit for fit in fits if fit.believable])
    # On busy CPUs, ends may be recorded too far apart to fit.
    if clocks_comparable and all(fit.coverage < TO_MOVE_A_CLOCK for fit in good):
        together = _by_overlap(a, b)
        if together.believable and len(together.a) > max((len(fit.a) for fit in good), default=0):
            good = [together]
    if not good:
        empty = np.empty(0, np.intp)
        return Alignment(empty, empty, 0, 0, ambiguous=False)
    return _finish(a, b, good, clocks_comparable)


def _offsets(a: CollectiveSequence, b: CollectiveSequence, tolerance: int, clocks_comparable: bool) -> list[int]:
    """Return the offsets of b's clock in ns with which many collectives end together, best candidates first.

    The collectives in the middle of `a` vote, because those at the edges may have no partner. Each votes for its end's
    distance to that of every collective of its signature at most `_WIDEST_LAG` places away. Votes within `tolerance`
    (ns) of each other are for one offset. If the clocks are comparable, 0 comes first, and the nearest offsets follow.
    """
    first = max(0, (len(a) - _VOTERS) // 2)
    voters = np.arange(first, min(first + _VOTERS, len(a)))
    lags = np.arange(-min(_WIDEST_LAG, len(a)), min(_WIDEST_LAG, len(b)) + 1)
    partner = voters[None, :] + lags[:, None]
    voter = np.broadcast_to(voters, partner.shape)
    inside = (partner >= 0) & (partner < len(b))
    voter, partner = voter[inside], partner[inside]
    same = (a.signature[voter] == b.signature[partner]) & a.symmetric[voter] & b.symmetric[partner]
    votes = np.sort(b.end[partner[same]] - a.end[voter[same]])
    if len(votes) == 0:
        return []
    # Count, for each vote, the votes up to one tolerance above it. Peaks of this count must be one tolerance apart.
    count = np.searchsorted(votes, votes + tolerance, side="right") - np.arange(len(votes))
    enough = count.max() // 2  # offsets with fewer votes are no candidates
    peaks: list[tuple[int, int]] = []  # (offset, votes)
    left = count.copy()
    while len(peaks) < 2 * _WIDEST_LAG:  # about one peak per lag
        top = int(left.argmax())
        if left[top] < max(enough, 1):
            break
        stop = top + int(count[top])
        peaks.append((int(median(votes[top:stop])), int(count[top])))
        low, high = np.searchsorted(votes, [votes[top] - tolerance, votes[stop - 1] + tolerance])
        left[low : max(high, stop)] = 0
    if clocks_comparable:
        nearest = sorted(peaks, key=lambda peak: abs(peak[0]))[:_MOST_CANDIDATES]
        return [0, *(offset for offset, _ in nearest)]
    return [offset for offset, _ in peaks[:_MOST_CANDIDATES]]


class _Fit(msgspec.Struct, frozen=True):
    """A pairing of symmetric collectives under one offset, in order of a.

    `offset` is the clock of b minus the clock of a; `spread` is the median distance of matched ends without the offset;
    both are in ns. `coverage` is the matched share of the collectives during both captures, on the rank with fewer such
    collectives. `believable` is true if enough collectives match.
    """

    a: NDArray[np.intp]
    b: NDArray[np.intp]
    offset: int
    spread: float
    coverage: float
    believable: bool


def _fit(a: CollectiveSequence, b: CollectiveSequence, offset: int, tolerance: int) -> _Fit:
    """Pair the collectives that end together under this offset, within the tolerance (both in ns).

    The result is believable if at least half of the collectives during both captures fit. If the clock must be shifted,
    three quarters must fit, with a small spread, and these must be half of the shorter capture, because an offset with
    hardly any overlap always fits.
    """
    pairs_a, pairs_b = _by_nearest_end(a, b, offset, tolerance)
    if len(pairs_a) == 0:
        return _Fit(pairs_a, pairs_b, offset, spread=0.0, coverage=0.0, believable=False)
    difference = b.end[pairs_b] - a.end[pairs_a]
    offset = int(median(difference))
    spread = median(np.abs(difference - offset))
    end_a, end_b = a.end[a.symmetric], b.end[b.symmetric] - offset
    seen_a = (end_a >= end_b.min() - tolerance) & (end_a <= end_b.max() + tolerance)
    seen_b = (end_b >= end_a.min() - tolerance) & (end_b <= end_a.max() + tolerance)
    # Pairs may lie just outside of both captures.
    coverage = min(len(pairs_a) / max(min(seen_a.sum(), seen_b.sum()), 1), 1.0)
    if abs(offset) <= SAME_CLOCK_NS:
        believable = coverage >= MATCHED_SHARE
    else:
        enough = 2 * len(pairs_a) >= min(len(end_a), len(end_b))
        believable = enough and coverage >= TO_MOVE_A_CLOCK and spread <= SAME_CLOCK_NS
    return _Fit(pairs_a, pairs_b, offset, spread, float(coverage), bool(believable))


def _equally_good(fits: list[_Fit]) -> list[_Fit]:
    """Return the pairings that fit about as well as the best pairing, one per offset, most pairs first."""
    most = max((len(fit.a) for fit in fits), default=0)
    widest = max((fit.coverage for fit in fits), default=0.0)
    many = [fit for fit in fits if 2 * len(fit.a) >= most and fit.coverage >= NEARLY_ALL * widest]
    # A few pairs may have a small spread by chance, so that only pairings with many pairs limit the spread.
    telling = [fit.spread for fit in many if len(fit.a) >= TELLING and 4 * len(fit.a) >= 3 * most]
    limit = max(EQUALLY_GOOD * min(telling), FINEST_SPREAD_NS) if telling else np.inf
    good: list[_Fit] = []
    for fit in sorted(many, key=lambda fit: -len(fit.a)):
        fine = fit.spread <= limit or abs(fit.offset) <= SAME_CLOCK_NS
        if fine and all(abs(fit.offset - other.offset) > LEAST_TOLERANCE_NS for other in good):
            good.append(fit)
    return good


def _by_nearest_end(
    a: CollectiveSequence, b: CollectiveSequence, offset: int, tolerance: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pair collectives of one signature whose ends, under the offset, are mutually nearest and within the tolerance."""
    keep_a, keep_b = np.flatnonzero(a.symmetric), np.flatnonzero(b.symmetric)
    if len(keep_a) == 0 or len(keep_b) == 0:
        empty = np.empty(0, np.intp)
        return empty, empty
    first, last = int(a.end[keep_a].min()), int(a.end[keep_a].max())
    end_a = a.end[keep_a] - first
    end_b = np.clip(b.end[keep_b] - offset - first, -2 * tolerance, last - first + 2 * tolerance)
    # Shift the ends of each signature so far that nearest neighbours have the same signature. For this, the ends of b
    # are clipped to a range in which the clipped ends are still too far from those of a to match.
    apart = last - first + 8 * tolerance
    end_a, end_b = end_a + a.signature[keep_a] * apart, end_b + b.signature[keep_b] * apart
    to_b, to_a = _nearest(end_a, end_b), _nearest(end_b, end_a)
    mutual = to_a[to_b] == np.arange(len(end_a))
    chosen = mutual & (np.abs(end_b[to_b] - end_a) <= tolerance)
    return keep_a[chosen], keep_b[to_b[chosen]]


def _by_overlap(a: CollectiveSequence, b: CollectiveSequence) -> _Fit:
    """Pair, in order, the collectives of each signature that overlap in time, if both ranks use one clock.

    No participant of a symmetric collective leaves before all have arrived, so that its records on two ranks must
    overlap. On busy CPUs only this overlap is reliable, because host-side collectives (gloo) end milliseconds apart.
    The clocks stay unchanged, and the whole distance between the ends is residual.
    """
    indices_a, indices_b = [], []
    for signature in sorted({*a.signature[a.symmetric].tolist()} & {*b.signature[b.symmetric].tolist()}):
        ours = np.flatnonzero(a.symmetric & (a.signature == signature)).tolist()
        theirs = np.flatnonzero(b.symmetric & (b.signature == signature)).tolist()
        i = j = 0
        while i < len(ours) and j < len(theirs):
            our, their = ours[i], theirs[j]
            before, after = a.end[our] < b.start[their], b.end[their] < a.start[our]
            if not before and not after:
                indices_a.append(our)
                indices_b.append(their)
            i, j = i + (not after), j + (not before)
    pairs_a, pairs_b = np.array(indices_a, np.intp), np.array(indices_b, np.intp)
    if len(pairs_a) == 0:
        return _Fit(pairs_a, pairs_b, offset=0, spread=0.0, coverage=0.0, believable=False)
    order = np.argsort(pairs_a, kind="stable")
    pairs_a, pairs_b = pairs_a[order], pairs_b[order]
    seen_a = a.symmetric & (a.end >= b.start.min()) & (a.start <= b.end.max())
    seen_b = b.symmetric & (b.end >= a.start.min()) & (b.start <= a.end.max())
    coverage = float(len(pairs_a) / max(min(seen_a.sum(), seen_b.sum()), 1))
    spread = median(np.abs(b.end[pairs_b] - a.end[pairs_a]))
    return _Fit(pairs_a, pairs_b, 0, spread, coverage, believable=coverage >= TO_MOVE_A_CLOCK)


def _nearest(points: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the index of the value nearest to each point; values may be in any order."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    left = np.searchsorted(ordered[1:-1], points)  # the last value below each point, from the first to the second last
    right = np.minimum(left + 1, len(ordered) - 1)
    pick = np.where(np.abs(ordered[left] - points) <= np.abs(ordered[right] - points), left, right)
    return order[pick]


def _finish(a: CollectiveSequence, b: CollectiveSequence, good: list[_Fit], clocks_comparable: bool) -> Alignment:
    """Choose one of the equally good pairings, by offset if clocks are comparable, and add the other collectives."""
    if clocks_comparable:
        good = sorted(good, key=lambda fit: abs(fit.offset))
        best, rivals = good[0], good[1:]
        # A pairing with a slightly larger offset, or with more pairs, may be the right pairing.
        ambiguous = abs(best.offset) > SAME_CLOCK_NS and any(
            abs(rival.offset) < 2 * abs(best.offset) or len(rival.a) > len(best.a) for rival in rivals
        )
    else:
        good = sorted(good, key=lambda fit: (-len(fit.a), fit.spread))
        best, ambiguous = good[0], len(good) > 1
    others_a, others_b = _between(a, b, best)
    index_a, index_b = np.concatenate([best.a, others_a]), np.concatenate([best.b, others_b])
    order = np.argsort(index_a, kind="stable")
    return Alignment(index_a[order], index_b[order], best.offset, int(best.spread), ambiguous)


def _between(a: CollectiveSequence, b: CollectiveSequence, fit: _Fit) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pair collectives between two neighbouring matches, if both ranks recorded the same sequence between them.

    Such collectives are rooted, or symmetric with ends too far apart, because a busy host recorded an end late. Before
    the first match and after the last match, a capture may lack collectives. In these parts, rooted collectives are
    paired outwards from the match, as long as their signatures agree.
    """
    if len(fit.a) == len(a) and len(fit.b) == len(b):
        return fit.a[:0], fit.b[:0]  # all are matched, as in most jobs
    rooted_a, rooted_b = np.flatnonzero(~a.symmetric), np.flatnonzero(~b.symmetric)
    # Matches that cross an earlier match do not delimit a sequence.
    in_order = np.concatenate([[True], np.diff(np.maximum.accumulate(fit.b)) > 0])
    matched_a, matched_b = fit.a[in_order], fit.b[in_order]
    cuts_a, cuts_b = np.searchsorted(rooted_a, matched_a), np.searchsorted(rooted_b, matched_b)
    pairs_a: list[NDArray[np.intp]] = []
    pairs_b: list[NDArray[np.intp]] = []

    def pair(ours: NDArray[np.intp], theirs: NDArray[np.intp]) -> None:
        """Pair collectives in order, up to the first pair with different signatures."""
        agree = np.cumprod(a.signature[ours] == b.signature[theirs]).astype(bool)
        pairs_a.append(ours[agree])
        pairs_b.append(theirs[agree])

    head = min(cuts_a[0], cuts_b[0])
    pair(rooted_a[cuts_a[0] - head : cuts_a[0]][::-1], rooted_b[cuts_b[0] - head : cuts_b[0]][::-1])
    tail = min(len(rooted_a) - cuts_a[-1], len(rooted_b) - cuts_b[-1])
    pair(rooted_a[cuts_a[-1] : cuts_a[-1] + tail], rooted_b[cuts_b[-1] : cuts_b[-1] + tail])
    # Between two matches, the others are paired if their number and signatures agree, and symmetric ones overlap.
    left_a, left_b = _without(len(a), fit.a), _without(len(b), fit.b)
    cuts_a, cuts_b = np.searchsorted(left_a, matched_a), np.searchsorted(left_b, matched_b)
    for i in np.flatnonzero((np.diff(cuts_a) == np.diff(cuts_b)) & (np.diff(cuts_a) > 0)):
        ours, theirs = left_a[cuts_a[i] : cuts_a[i + 1]], left_b[cuts_b[i] : cuts_b[i + 1]]
        together = (a.start[ours] <= b.end[theirs] - fit.offset) & (b.start[theirs] - fit.offset <= a.end[ours])
        if ((a.signature[ours] == b.signature[theirs]) & (together | ~a.symmetric[ours])).all():
            pairs_a.append(ours)
            pairs_b.append(theirs)
    return np.concatenate(pairs_a), np.concatenate(pairs_b)


def _without(count: int, matched: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the indices below `count` that are not matched."""
    left = np.ones(count, np.bool_)
    left[matched] = False
    return np.flatnonzero(left)
