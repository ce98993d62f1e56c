"""Test transfers over links, buckets, and exposed communication."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.prediction.curves import Curve
from gpudiag.prediction.overlap import MIB, ddp_buckets, ready_at
from gpudiag.prediction.transfers import Transfer, exposed_after, run

SIZES = st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=40)


def _transfer(links: str, duration_ms: float, *, ready_ms: float = 0.0) -> Transfer:
    return Transfer(links=tuple(links.split()), ready_ms=ready_ms, duration_ms=duration_ms)


def test_one_link_serves_transfers_in_sequence() -> None:
    asked = [_transfer("out:0 in:1", 10), _transfer("out:0 in:2", 10), _transfer("out:0 in:1", 10)]
    assert [end for _, end in run(asked)] == [10, 20, 30]


def test_different_links_work_in_parallel() -> None:
    assert [end for _, end in run([_transfer("out:0 in:1", 10), _transfer("out:2 in:3", 10)])] == [10, 10]


def test_exposed_time_is_communication_after_backward() -> None:
    """Two buckets are ready at 4 and 10 ms of a backward pass of 10 ms.

    If each bucket takes 5 ms, 5 ms are exposed; if each takes 8 ms, 10 ms are exposed.
    """
    ready = ready_at([2, 3], 10.0)
    assert ready == [4.0, 10.0]
    for takes, exposed in ((5.0, 5.0), (8.0, 10.0)):
        ended = run([_transfer("ring", takes, ready_ms=at) for at in ready])
        assert exposed_after(ended, 10.0) == pytest.approx(exposed)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)), min_size=1, max_size=30))
def test_transfers_over_a_link_take_at_least_their_total_time(pieces: list[tuple[float, float]]) -> None:
    ended = run([_transfer("ring", takes, ready_ms=ready) for ready, takes in pieces])
    last = max(end for _, end in ended)
    assert last >= sum(takes for _, takes in pieces) - 1e-6
    assert last <= max(ready for ready, _ in pieces) + sum(takes for _, takes in pieces) + 1e-6


@given(SIZES, st.one_of(st.none(), st.floats(0.5, 100)))
def test_every_gradient_is_in_one_bucket_in_order(sizes: list[int], bucket_mb: float | None) -> None:
    buckets = ddp_buckets(sizes, bucket_mb)
    assert [number for bucket in buckets for number in bucket] == list(range(len(sizes)))
    limit = (25 if bucket_mb is None else bucket_mb) * MIB
    assert all(sum(sizes[i] for i in bucket[:-1]) < limit for bucket in buckets)


def test_curve_interpolates_extrapolates_and_scales_with_ranks() -> None:
    curve = Curve({1_000: 0.02, 1_000_000: 0.03, 100_000_000: 1.02}, 4)
    assert curve.time_ms(10) == 0.02
    assert curve.time_ms(50_500_000) == pytest.approx(0.525)
    assert curve.time_ms(200_000_000) == pytest.approx(2.03, rel=0.01)
    assert curve.time_ms(100_000_000, 1) == 0.0
    # The curve was measured with four ranks. With two ranks, the buffer passes each link once instead of 1.5 times, and
    # there are two hops instead of six. So transfer time is divided by 1.5 and latency by 3.
    assert curve.time_ms(100_000_000, 2) == pytest.approx(0.02 / 3 + 1.0 / 1.5)


@given(st.integers(1, 1 << 32), st.integers(2, 16))
def test_more_bytes_never_take_less_time(size: int, ranks: int) -> None:
    curve = Curve({1 << 10: 0.02, 1 << 20: 0.04, 1 << 28: 2.0}, 4)
    assert 0 < curve.time_ms(size, ranks) <= curve.time_ms(2 * size, ranks)
