"""Test that the true matches are found despite injected lags, drops, jitter and clock offsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpudiag.analysis.timeline.alignment import Alignment, CollectiveSequence, align
from gpudiag.model.timeline import SAME_CLOCK_NS
from gpudiag.units import NS_PER_MS, NS_PER_US
from tests.examples import examples

JITTER_NS = 70 * NS_PER_US
"""Largest distance between the ends of a collective on two ranks, in real traces."""
TYPICAL_NS = 13 * NS_PER_US
"""Usual distance between the ends of a collective on two ranks."""


@dataclass
class Job:
    """The true ends and sizes of collectives, and whether all ranks leave them together."""

    end: np.ndarray[tuple[int], np.dtype[np.int64]]
    signature: np.ndarray[tuple[int], np.dtype[np.int64]]
    symmetric: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def seen(
        self,
        which: np.ndarray[tuple[int], np.dtype[np.intp]],
        offset: int,
        noise: np.random.Generator,
        jitter_ns: int = JITTER_NS,
    ) -> CollectiveSequence:
        """Return the collectives in `which` as one rank records them, with jitter and a clock offset."""
        end = self.end[which] + noise.integers(0, jitter_ns, len(which)) + offset
        return CollectiveSequence(
            start=end - noise.integers(100 * NS_PER_US, 2 * NS_PER_MS, len(which)),
            end=end,
            signature=self.signature[which],
            symmetric=self.symmetric[which],
        )


def training(steps: int, buckets: int, noise: np.random.Generator, *, sized: bool = True, broadcasts: int = 0) -> Job:
    """Make steps of about 30 ms, each with `buckets` all-reduces in its second half; step times vary by 2 %.

    `broadcasts` is the number of broadcasts at the begin of a step. Unless `sized`, all all-reduces have equal sizes.
    """
    ends, signatures, symmetric = [], [], []
    begin = 0.0
    for _ in range(steps):
        length = 30 * NS_PER_MS * noise.normal(1, 0.02)
        for index in range(broadcasts):
            ends.append(begin + length * 0.05 * (index + 1))
            signatures.append(100 + index)
            symmetric.append(False)
        for index in range(buckets):
            ends.append(begin + length * (0.5 + 0.5 * (index + 1) / buckets) + noise.normal(0, 30 * NS_PER_US))
            signatures.append(index if sized else 0)
            symmetric.append(True)
        begin += length
    return Job(np.array(ends).astype(np.int64), np.array(signatures, np.int64), np.array(symmetric, np.bool_))


def check_pairing(found: Alignment, of_a: np.ndarray, of_b: np.ndarray, *, at_least: float) -> None:
    """Check that each match joins recordings of the same collective, and that almost all collectives recorded by both
    ranks match."""
    assert (of_a[found.a] == of_b[found.b]).all()
    assert len(found.a) >= at_least * len(np.intersect1d(of_a, of_b))


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(2, 8),
    buckets=st.integers(1, 8),
    sized=st.booleans(),
    broadcasts=st.integers(0, 2),
    cut=st.tuples(*[st.integers(0, 6)] * 4),
    offset=st.sampled_from([0, 2 * NS_PER_US, -300 * NS_PER_US, 3 * NS_PER_MS, -5 * NS_PER_MS]),
)
@example(seed=1, steps=6, buckets=4, sized=False, broadcasts=2, cut=(3, 6, 4, 4), offset=0)
@examples(200)
def test_traces_with_different_start_and_end_are_aligned(
    *, seed: int, steps: int, buckets: int, sized: bool, broadcasts: int, cut: tuple[int, int, int, int], offset: int
) -> None:
    noise = np.random.default_rng(seed)
    job = training(steps, buckets, noise, sized=sized, broadcasts=broadcasts)
    count = len(job.end)
    most = count // 4
    of_a = np.arange(min(cut[0], most), count - min(cut[1], most))
    of_b = np.arange(min(cut[2], most), count - min(cut[3], most))
    alignment = align(job.seen(of_a, 0, noise), job.seen(of_b, offset, noise), clocks_comparable=True)
    # If the clocks differ, a few equal collectives may match in several ways; then the result must be ambiguous.
    if abs(offset) < NS_PER_MS or not alignment.ambiguous:
        check_pairing(alignment, of_a, of_b, at_least=0.99)
        assert abs(alignment.offset_ns - offset) <= JITTER_NS


@given(seed=st.integers(0, 2**32), offset=st.sampled_from([3 * NS_PER_MS, -5 * NS_PER_MS]))
@examples(50)
def test_small_clock_offset_is_unambiguous(seed: int, offset: int) -> None:
    noise = np.random.default_rng(seed)
    job = training(6, 4, noise)
    every = np.arange(len(job.end))
    alignment = align(job.seen(every, 0, noise), job.seen(every, offset, noise), clocks_comparable=True)
    assert not alignment.ambiguous
    assert abs(alignment.offset_ns - offset) <= JITTER_NS


@given(seed=st.integers(0, 2**32), lost=st.integers(1, 6), offset=st.sampled_from([0, 40 * NS_PER_US, 2 * NS_PER_MS]))
@examples(100)
def test_collectives_lost_in_the_middle_are_skipped(seed: int, lost: int, offset: int) -> None:
    noise = np.random.default_rng(seed)
    job = training(6, 5, noise)
    of_a = np.arange(len(job.end))
    of_b = np.delete(of_a, noise.choice(np.arange(1, len(of_a) - 1), lost, replace=False))
    alignment = align(job.seen(of_a, 0, noise), job.seen(of_b, offset, noise), clocks_comparable=True)
    check_pairing(alignment, of_a, of_b, at_least=0.9)


@given(seed=st.integers(0, 2**32), origin=st.integers(-(10**12), 10**12), cut=st.tuples(*[st.integers(0, 3)] * 4))
@examples(100)
def test_clocks_without_a_common_origin_are_aligned(seed: int, origin: int, cut: tuple[int, int, int, int]) -> None:
    """Steps of unequal length make one match much better than all others."""
    noise = np.random.default_rng(seed)
    job = training(6, 4, noise)
    count = len(job.end)
    of_a, of_b = np.arange(cut[0], count - cut[1]), np.arange(cut[2], count - cut[3])
    alignment = align(
        job.seen(of_a, 0, noise, TYPICAL_NS), job.seen(of_b, origin, noise, TYPICAL_NS), clocks_comparable=False
    )
    check_pairing(alignment, of_a, of_b, at_least=0.99)


@pytest.mark.parametrize("origin", [0, 10**9])
def test_long_traces_are_aligned(origin: int) -> None:
    """Only a sample of collectives determines the offset, and then all collectives are matched."""
    noise = np.random.default_rng(3)
    job = training(150, 7, noise)
    every = np.arange(len(job.end))
    of_a, of_b = every[:-100], every[100:]
    a, b = job.seen(of_a, 0, noise, TYPICAL_NS), job.seen(of_b, origin, noise, TYPICAL_NS)
    alignment = align(a, b, clocks_comparable=origin == 0)
    check_pairing(alignment, of_a, of_b, at_least=0.99)
    assert abs(alignment.offset_ns - origin) <= TYPICAL_NS


def test_uneven_steps_are_rarely_ambiguous_without_a_common_origin() -> None:
    """Steps that are similar by chance may make a correct match ambiguous."""
    doubted = 0
    for seed in range(100):
        noise = np.random.default_rng(seed)
        job = training(6, 4, noise)
        every = np.arange(len(job.end))
        a, b = job.seen(every, 0, noise, TYPICAL_NS), job.seen(every[:-2], 10**9, noise, TYPICAL_NS)
        doubted += align(a, b, clocks_comparable=False).ambiguous
    assert doubted <= 5


def test_periodic_collectives_without_a_common_origin_are_called_ambiguous() -> None:
    end = np.arange(20, dtype=np.int64) * 30 * NS_PER_MS
    same, all_leave = np.zeros(20, np.int64), np.ones(20, np.bool_)
    a = CollectiveSequence(start=end - 1000, end=end, signature=same, symmetric=all_leave)
    b = CollectiveSequence(
        start=end[:18] + 7_000_000_000, end=end[:18] + 7_000_000_123, signature=same[:18], symmetric=all_leave[:18]
    )
    assert align(a, b, clocks_comparable=False).ambiguous


def test_periodic_collectives_on_one_clock_pair_where_they_end_together() -> None:
    end = np.arange(20, dtype=np.int64) * 30 * NS_PER_MS
    same, all_leave = np.zeros(20, np.int64), np.ones(20, np.bool_)
    a = CollectiveSequence(start=end - 1000, end=end, signature=same, symmetric=all_leave)
    b = CollectiveSequence(start=end[3:], end=end[3:] + 5_000, signature=same[3:], symmetric=all_leave[3:])
    alignment = align(a, b, clocks_comparable=True)
    assert (alignment.a - alignment.b).tolist() == [3] * 17
    assert alignment.offset_ns == 5_000
    assert not alignment.ambiguous


@pytest.mark.parametrize("comparable", [True, False])
def test_single_collectives_match(comparable: bool) -> None:
    one = CollectiveSequence(
        start=np.array([1], np.int64),
        end=np.array([5], np.int64),
        signature=np.zeros(1, np.int64),
        symmetric=np.ones(1, np.bool_),
    )
    alignment = align(one, one, clocks_comparable=comparable)
    assert (alignment.a.tolist(), alignment.b.tolist(), alignment.offset_ns) == ([0], [0], 0)


@pytest.mark.parametrize("comparable", [True, False])
def test_rank_without_symmetric_collectives_matches_nothing(comparable: bool) -> None:
    noise = np.random.default_rng(0)
    job = training(3, 2, noise, broadcasts=1)
    every = np.arange(len(job.end))
    whole, rooted = job.seen(every, 0, noise), job.seen(np.flatnonzero(~job.symmetric), 0, noise)
    for a, b in ((whole, rooted), (rooted, whole), (rooted, rooted)):
        alignment = align(a, b, clocks_comparable=comparable)
        assert (len(alignment.a), len(alignment.b), alignment.offset_ns, alignment.ambiguous) == (0, 0, 0, False)


@given(seed=st.integers(0, 2**32))
@examples(50)
def test_unrelated_collectives_give_no_clock_offset(seed: int) -> None:
    """Two groups with the same name have different collectives, whose unrelated ends must not give a clock offset."""
    noise = np.random.default_rng(seed)
    count = 40
    one, other = (
        CollectiveSequence(
            start=(end := np.sort(noise.integers(0, 200 * NS_PER_MS, count))) - 50 * NS_PER_US,
            end=end,
            signature=np.zeros(count, np.int64),
            symmetric=np.ones(count, np.bool_),
        )
        for _ in range(2)
    )
    assert abs(align(one, other, clocks_comparable=True).offset_ns) <= SAME_CLOCK_NS


@given(seed=st.integers(0, 2**32), comparable=st.booleans())
@examples(50)
def test_only_collectives_of_one_signature_match(seed: int, *, comparable: bool) -> None:
    noise = np.random.default_rng(seed)
    job = training(6, 4, noise)
    every = np.arange(len(job.end))
    a, b = job.seen(every, 0, noise), job.seen(every, 0, noise)
    # For each collective of the first rank, the second rank has a collective of a different size with the same end.
    beside = CollectiveSequence(
        start=np.repeat(b.start, 2),
        end=np.stack([a.end, b.end], axis=1).reshape(-1),
        signature=np.stack([b.signature + 50, b.signature], axis=1).reshape(-1),
        symmetric=np.repeat(b.symmetric, 2),
    )
    alignment = align(a, beside, clocks_comparable=comparable)
    assert (a.signature[alignment.a] == beside.signature[alignment.b]).all()
    assert len(alignment.a) == len(every)


@given(seed=st.integers(0, 2**32), steps=st.integers(3, 6), lost=st.integers(0, 2))
@examples(50)
def test_scattered_ends_match_by_overlap_on_one_clock(seed: int, steps: int, lost: int) -> None:
    """gloo's threads on busy CPUs end milliseconds apart, as in `tests/traces/gloo_dataloader`."""
    noise = np.random.default_rng(seed)
    job = training(steps, 3, noise)
    of_a, of_b = np.arange(len(job.end)), np.arange(lost, len(job.end))

    def loose(which: np.ndarray[tuple[int], np.dtype[np.intp]]) -> CollectiveSequence:
        seen = job.seen(which, 0, noise)
        late = noise.integers(0, 8 * NS_PER_MS, len(which))
        return CollectiveSequence(
            start=seen.start - NS_PER_MS, end=seen.end + late, signature=seen.signature, symmetric=seen.symmetric
        )

    alignment = align(loose(of_a), loose(of_b), clocks_comparable=True)
    check_pairing(alignment, of_a, of_b, at_least=0.9)
    assert alignment.offset_ns == 0


def test_empty_traces_match_nothing() -> None:
    none = CollectiveSequence(
        start=np.empty(0, np.int64),
        end=np.empty(0, np.int64),
        signature=np.empty(0, np.int64),
        symmetric=np.empty(0, np.bool_),
    )
    assert len(align(none, none, clocks_comparable=True).a) == 0
