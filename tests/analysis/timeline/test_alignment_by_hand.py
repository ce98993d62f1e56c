"""Test each stage of an alignment just below and just above its threshold. Times in µs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.analysis.timeline.alignment import (
    CollectiveSequence,
    _between,
    _by_nearest_end,
    _by_overlap,
    _equally_good,
    _finish,
    _Fit,
    _fit,
    _nearest,
    _offsets,
    align,
)
from gpudiag.analysis.timeline.calibration import LEAST_TOLERANCE_NS
from gpudiag.units import NS_PER_US
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence as Several

    from numpy.typing import NDArray

FAR = 1_000_000
"""Clock offset of one second, as between clocks with different origins."""


def seen(
    ends: Several[float],
    *,
    starts: Several[float] | None = None,
    of: Several[int] | None = None,
    rooted: Several[int] = (),
) -> CollectiveSequence:
    """Make collectives with `ends` and signatures `of`; ranks leave the `rooted` collectives at different times."""
    end = (np.array(ends, np.float64) * NS_PER_US).astype(np.int64)
    start = end - 50 * NS_PER_US if starts is None else (np.array(starts, np.float64) * NS_PER_US).astype(np.int64)
    signature = np.zeros(len(end), np.int64) if of is None else np.array(of, np.int64)
    return CollectiveSequence(
        start=start, end=end, signature=signature, symmetric=~np.isin(np.arange(len(end)), rooted)
    )


def pairs(found: tuple[NDArray[np.intp], NDArray[np.intp]]) -> list[tuple[int, int]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def near(a: CollectiveSequence, b: CollectiveSequence, offset: float = 0) -> list[tuple[int, int]]:
    return pairs(_by_nearest_end(a, b, int(offset * NS_PER_US), LEAST_TOLERANCE_NS))


def fit(a: CollectiveSequence, b: CollectiveSequence, offset: float = 0) -> _Fit:
    return _fit(a, b, int(offset * NS_PER_US), LEAST_TOLERANCE_NS)


@given(st.lists(st.integers(-9, 9), min_size=1), st.lists(st.integers(-9, 9), min_size=1))
@examples(50)
def test_nearest_value_with_ties_to_the_lower(points: list[int], among: list[int]) -> None:
    nearest = _nearest(np.array(points), np.array(among))
    for point, at in zip(points, nearest.tolist(), strict=True):
        assert (abs(among[at] - point), among[at]) == min((abs(value - point), value) for value in among)


def test_matches_are_mutually_nearest_within_the_tolerance() -> None:
    assert near(seen([0, 1000, 2000]), seen([300, 700, 2301])) == [(0, 0), (1, 1)]
    assert near(seen([0, 200]), seen([150])) == [(1, 0)]
    assert near(seen([150]), seen([0, 200])) == [(0, 1)]
    assert near(seen([0, 1000]), seen([5000, 6300]), 5000) == [(0, 0), (1, 1)]
    assert near(seen([0, 1000]), seen([5000, 6301]), 5000) == [(0, 0)]
    assert near(seen([0, 1000]), seen([-4000, -5000]), -5000) == [(0, 1), (1, 0)]


def test_matches_are_symmetric_and_of_one_signature() -> None:
    assert near(seen([0, 1000, 2000], of=[1, 2, 3]), seen([0, 1000, 2000], of=[1, 3, 3])) == [(0, 0), (2, 2)]
    assert near(seen([0, 1000], of=[1, 2]), seen([0, 1000], of=[2, 1])) == []
    assert near(seen([0, 1000, 2000], rooted=[1]), seen([0, 1000, 2000], rooted=[0])) == [(2, 2)]
    assert near(seen([0, 1000], rooted=[0, 1]), seen([0, 1000])) == near(seen([0]), seen([0], rooted=[0])) == []
    # The ends of collectives of another signature are far away, and must not count as neighbours.
    ends = [-5_000, 0, 1000, 2000, 7_000]
    assert near(seen([0, 1000, 2000], of=[1, 2, 3]), seen(ends, of=[3, 1, 2, 3, 1])) == [(0, 1), (1, 2), (2, 3)]


def shifted(fitting: int, count: int, *, bend: int = 0) -> list[float]:
    """Return `count` ends that are 1000 µs apart; all but `fitting` ends are 500 µs late.

    With a `bend` the distances increase.
    """
    return [at * 1000 + bend * at * at + (500 if 1 <= at <= count - fitting else 0) for at in range(count)]


@pytest.mark.parametrize(("fitting", "offset", "believable"), [(6, 0, True), (5, 0, False), (6, 100, True)])
def test_half_of_the_collectives_must_fit_on_one_clock(fitting: int, offset: float, *, believable: bool) -> None:
    fitted = fit(seen(shifted(12, 12)), seen([at + offset for at in shifted(fitting, 12)]), offset)
    assert (len(fitted.a), fitted.offset, fitted.spread) == (fitting, offset * NS_PER_US, 0)
    assert fitted.coverage == fitting / 12
    assert fitted.believable == believable


@pytest.mark.parametrize(
    ("fitting", "offset", "believable"),
    [(9, FAR, True), (8, FAR, False), (8, 101, False), (9, 101, True), (9, -FAR, True)],
)
def test_moving_a_clock_needs_a_fit_of_three_quarters(fitting: int, offset: float, *, believable: bool) -> None:
    fitted = fit(seen(shifted(12, 12)), seen([at + offset for at in shifted(fitting, 12)]), offset)
    assert fitted.believable == believable


@pytest.mark.parametrize(("apart", "believable"), [(100, True), (101, False)])
def test_moving_a_clock_needs_a_close_fit(apart: float, *, believable: bool) -> None:
    """Ten ends are alternately early and late by `apart` µs, and one end is on time."""
    ends = [at * 1000 + FAR + (apart, -apart)[at % 2] * (at < 10) for at in range(11)]
    fitted = fit(seen(shifted(11, 11)), seen(ends), FAR)
    assert (fitted.offset, fitted.spread) == (FAR * NS_PER_US, apart * NS_PER_US)
    assert fitted.believable == believable


@pytest.mark.parametrize(("overlap", "believable"), [(5, True), (4, False)])
def test_moving_a_clock_needs_half_of_the_shorter_trace(overlap: int, *, believable: bool) -> None:
    ends = [FAR + at * 1000 for at in range(overlap - 10, overlap)]
    fitted = fit(seen(shifted(20, 20)), seen(ends), FAR)
    assert (len(fitted.a), fitted.coverage, fitted.believable) == (overlap, 1.0, believable)
    fitted = fit(seen(ends), seen(shifted(20, 20)), -FAR)
    assert (len(fitted.a), fitted.coverage, fitted.believable) == (overlap, 1.0, believable)


def test_collectives_that_one_rank_did_not_record_need_not_fit() -> None:
    """The second rank recorded the last three of eleven ends, and a further end between them."""
    one, other = seen(shifted(11, 11)), seen([8000, 8500, 9000, 10_000, 10_301])
    assert fit(one, other).coverage == fit(other, one).coverage == 1.0
    # Ends within the tolerance of the trace's edge count as recorded.
    more = seen([8000, 8500, 9000, 10_000, 10_300, 12_000])
    assert fit(one, more).coverage == 1.0
    assert fit(seen([0, 1000, 2000, 3000]), seen([-300, 100, 1100, 1500, 2100])).coverage == 1.0
    assert fit(seen([1000, 2000, 3000]), seen([-300, 0, 1000, 2600, 3301])).coverage == 1 / 2
    none = fit(seen([0]), seen([400]))
    assert (len(none.a), none.spread, none.coverage, none.believable) == (0, 0, 0, False)


def fitting(count: int, offset: float, spread: float = 0, coverage: float = 1.0) -> _Fit:
    at = np.arange(count)
    return _Fit(at, at, int(offset * NS_PER_US), spread * NS_PER_US, coverage, believable=True)


def offsets(*fits: _Fit) -> list[float]:
    return [alignment.offset / NS_PER_US for alignment in _equally_good([*fits])]


def test_equally_good_alignments_have_half_the_matches_and_nearly_full_coverage() -> None:
    assert offsets() == []
    assert offsets(fitting(10, 5000), fitting(20, 0)) == [0, 5000]
    assert offsets(fitting(9, 5000), fitting(20, 0)) == [0]
    assert offsets(fitting(20, 0), fitting(15, 5000, coverage=0.95)) == [0, 5000]
    assert offsets(fitting(20, 0), fitting(15, 5000, coverage=0.94)) == [0]
    assert offsets(fitting(20, 0, coverage=0.8), fitting(15, 5000, coverage=0.76)) == [0, 5000]


def test_equally_good_alignments_have_at_most_four_times_the_spread() -> None:
    best = fitting(20, 2000, spread=10)
    assert offsets(best, fitting(15, 5000, spread=40)) == [2000, 5000]
    assert offsets(best, fitting(15, 5000, spread=40.1)) == [2000]
    # Offsets up to 100 µs count as one clock. Then the spread does not decide, because ranks may leave a collective at
    # different times.
    assert offsets(best, fitting(15, 100, spread=41)) == [2000, 100]
    assert offsets(best, fitting(15, 101, spread=41)) == [2000]
    # A difference of spreads below the clock's resolution does not decide.
    assert offsets(fitting(20, 2000, spread=1), fitting(15, 5000, spread=20)) == [2000, 5000]
    assert offsets(fitting(20, 2000, spread=1), fitting(15, 5000, spread=20.1)) == [2000]


def test_offsets_with_few_matches_do_not_limit_the_spread() -> None:
    assert offsets(fitting(8, 2000), fitting(6, 5000, spread=90)) == [2000]
    assert offsets(fitting(7, 2000), fitting(6, 5000, spread=90)) == [2000, 5000]
    assert offsets(fitting(16, 2000, spread=90), fitting(12, 5000)) == [5000]
    assert offsets(fitting(16, 2000, spread=90), fitting(11, 5000)) == [2000, 5000]


def test_offsets_within_the_tolerance_are_merged() -> None:
    assert offsets(fitting(19, 2300), fitting(20, 2000), fitting(18, 2301), fitting(17, 1700)) == [2000, 2301]


def test_smaller_offset_is_preferred_on_comparable_clocks() -> None:
    def alignment_of(*fits: _Fit, comparable: bool = True) -> tuple[float, int, bool]:
        one = _finish(seen([0] * 30), seen([0] * 30), [*fits], comparable)
        return one.offset_ns / NS_PER_US, len(one.a), one.ambiguous

    assert alignment_of(fitting(20, 5000), fitting(15, -100)) == (-100, 15, False)
    # The larger offset matches more collectives.
    assert alignment_of(fitting(20, -5000), fitting(15, 101)) == (101, 15, True)
    assert alignment_of(fitting(15, -5000), fitting(15, 101)) == (101, 15, False)
    assert alignment_of(fitting(15, 202), fitting(15, 101)) == (101, 15, False)
    assert alignment_of(fitting(15, -201), fitting(15, 101)) == (101, 15, True)  # the second offset is hardly larger
    assert alignment_of(fitting(15, 101)) == (101, 15, False)
    # If clocks are not comparable, the size of the offset does not decide.
    assert alignment_of(fitting(15, 100), fitting(20, 5000), comparable=False) == (5000, 20, True)
    assert alignment_of(fitting(15, 100, spread=2), fitting(15, 5000, spread=1), comparable=False) == (5000, 15, True)
    assert alignment_of(fitting(15, 5000), comparable=False) == (5000, 15, False)
    assert _finish(seen([0] * 9), seen([0] * 9), [fitting(9, 0, spread=7)], False).residual_ns == 7 * NS_PER_US


def rooted_between(a: str, b: str) -> list[tuple[int, int]]:
    """Return the matches of rooted collectives (letters) between the matched collectives (`*`) of two ranks."""
    one, other = (
        seen(range(len(of)), of=[ord(c) for c in of], rooted=[at for at, c in enumerate(of) if c != "*"])
        for of in (a, b)
    )
    matched = [np.array([at for at, c in enumerate(of) if c == "*"], np.intp) for of in (a, b)]
    return sorted(pairs(_between(one, other, _Fit(matched[0], matched[1], 0, 0.0, 1.0, believable=True))))


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ("*xy*", "*xy*", [(1, 1), (2, 2)]),
        ("*xy*", "*x*", []),  # the second rank lacks a collective, which may be x or y
        ("*xy*", "*xz*", []),
        ("*x*y*", "*z*y*", [(3, 3)]),
        ("*x**", "***", []),
        ("xy*", "xy*", [(0, 0), (1, 1)]),
        ("xy*", "y*", [(1, 0)]),  # matches proceed outwards from a matched collective
        ("y*", "xy*", [(0, 1)]),
        ("xy*", "zy*", [(1, 1)]),
        ("xy*", "xz*", []),  # the last collectives have different signatures
        ("*xy", "*x", [(1, 1)]),
        ("*x", "*xy", [(1, 1)]),
        ("*xyz", "*xaz", [(1, 1)]),
        ("w*x*yz", "w*x*yz", [(0, 0), (2, 2), (4, 4), (5, 5)]),
        ("*", "*", []),
    ],
)
def test_rooted_collectives_match_between_matched_ones(a: str, b: str, found: list[tuple[int, int]]) -> None:
    assert rooted_between(a, b) == found


def overlap(a: CollectiveSequence, b: CollectiveSequence) -> tuple[list[tuple[int, int]], float, float, bool]:
    alignment = _by_overlap(a, b)
    return pairs((alignment.a, alignment.b)), alignment.spread / NS_PER_US, alignment.coverage, alignment.believable


def test_overlapping_collectives_match_on_one_clock() -> None:
    a = seen([1000, 3000, 5000], starts=[0, 2000, 4000])
    assert overlap(a, seen([1900, 3500, 4100], starts=[1000, 3000, 3600])) == ([(0, 0), (1, 1), (2, 2)], 900, 1.0, True)
    # Two calls do not belong to the same collective if one of them begins after the other has ended.
    assert overlap(a, seen([1900, 3500], starts=[1001, 3000])) == ([(1, 1)], 500, 1.0, True)
    assert overlap(a, seen([-1, 3500], starts=[-100, 3000])) == ([(1, 1)], 500, 1.0, True)
    assert overlap(seen([10], starts=[5]), seen([4], starts=[1])) == ([], 0, 0, False)
    assert overlap(a, seen([1000, 3000], of=[7, 7])) == ([], 0, 0, False)


def test_overlap_matches_each_signature_in_order() -> None:
    a = seen([1000, 3000, 5000], starts=[0, 2000, 4000], of=[2, 1, 2])
    b = seen([1000, 3000, 5000], starts=[0, 2000, 4000], of=[2, 1, 2])
    assert overlap(a, b) == ([(0, 0), (1, 1), (2, 2)], 0, 1.0, True)
    assert overlap(a, seen([1000, 3000, 5000], starts=[0, 2000, 4000], of=[2, 1, 2], rooted=[0]))[0] == [(1, 1), (2, 2)]
    assert overlap(seen([1000, 3000, 5000], of=[2, 1, 2], rooted=[2]), b)[0] == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("others", "believable"), [(3, True), (4, False)])
def test_three_quarters_of_the_collectives_must_overlap(others: int, *, believable: bool) -> None:
    """Nine collectives match.

    Each rank has `others` further collectives, which do not overlap, within the time of both traces.
    """
    nine = [at * 1000 for at in range(1, 9)] + [20_000]
    between = [10_000 + at * 1000 for at in range(others)]
    a, b = seen(sorted(nine + between)), seen(sorted(nine + [at + 500 for at in between]))
    alignment = _by_overlap(a, b)
    assert (len(alignment.a), alignment.coverage, alignment.believable) == (9, 9 / (9 + others), believable)


@pytest.mark.parametrize(("begin", "coverage"), [(20_000, 9 / 10), (20_001, 1.0)])
def test_collective_at_the_edge_of_the_other_trace_counts_as_recorded(begin: float, coverage: float) -> None:
    nine = [at * 1000 for at in range(1, 9)] + [20_000]
    a = seen([*nine, 20_050], starts=[*(at - 50 for at in nine), begin])
    b = seen(sorted([*nine, 10_500]))
    assert _by_overlap(a, b).coverage == _by_overlap(b, a).coverage == coverage


def test_offsets_that_many_collectives_share_come_first() -> None:
    a, b = seen([0, 10_000, 20_000]), seen([5_000, 15_000, 25_000])

    def of(a: CollectiveSequence, b: CollectiveSequence, *, comparable: bool) -> list[float]:
        return [offset / NS_PER_US for offset in _offsets(a, b, LEAST_TOLERANCE_NS, comparable)]

    assert of(a, b, comparable=False) == [5_000, -5_000, 15_000, -15_000, 25_000]
    assert of(a, b, comparable=True) == [0, 5_000, -5_000, 15_000, -15_000, 25_000]
    # An offset is omitted if it matches fewer than half as many collectives as the best offset.
    a, b = seen([0, 10_000, 20_000, 30_000]), seen([5_000, 15_000, 25_000, 35_000])
    assert of(a, b, comparable=False) == [5_000, -5_000, 15_000, -15_000, 25_000]
    # Ends within the tolerance are merged to their median.
    assert of(seen([0]), seen([0, 200, 400]), comparable=False) == [100]
    assert of(seen([0]), seen([0, 100, 300]), comparable=False) == [100]
    assert of(seen([0]), seen([0, 301]), comparable=False) == [0, 301]
    assert of(seen([0]), seen([-250, 0, 300]), comparable=False) == [-125, 300]
    assert of(seen([0, 1000], of=[1, 2]), seen([7, 1000], of=[1, 3]), comparable=False) == [7]
    assert of(seen([0, 1000], rooted=[0]), seen([7, 1008], rooted=[0]), comparable=False) == [8]
    assert of(seen([0], rooted=[0]), seen([7]), comparable=True) == []
    many = seen([at * 1000 for at in range(20)])
    assert len(of(many, many, comparable=False)) == 8
    assert of(many, many, comparable=True) == [0, 0, *(sign * at * 1000 for at in (1, 2, 3) for sign in (-1, 1)), -4000]


def test_overlap_is_used_if_it_matches_more() -> None:
    def loose(fits: int) -> CollectiveSequence:
        ends = shifted(fits, 12, bend=400)
        return seen(ends, starts=[at - 600 for at in ends])

    def alignment_of(fits: int) -> tuple[int, float]:
        one = align(loose(12), loose(fits), clocks_comparable=True)
        return len(one.a), one.residual_ns / NS_PER_US

    assert alignment_of(12) == (12, 0)
    assert alignment_of(9) == (12, 0)  # three quarters match by their ends, and all other collectives lie between these
    assert alignment_of(8) == (12, 0)
    assert alignment_of(5) == (12, 500)
    assert len(align(loose(12), loose(4), clocks_comparable=False).a) == 0
    # Collectives without overlap are unrelated, and only the collectives with matching ends count.
    ends = shifted(8, 12, bend=400)
    assert len(align(seen(shifted(12, 12, bend=400)), seen(ends), clocks_comparable=True).a) == 8


def test_unfitting_sequences_are_not_aligned() -> None:
    alignment = align(seen([0, 1000, 2500]), seen([], of=[]), clocks_comparable=True)
    assert (len(alignment.a), len(alignment.b), alignment.offset_ns, alignment.residual_ns, alignment.ambiguous) == (
        0,
        0,
        0,
        0,
        False,
    )
