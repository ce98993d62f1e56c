from __future__ import annotations

import doctest
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.comparison import noise


def test_examples_hold() -> None:
    result = doctest.testmod(noise)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Abramowitz and Stegun, table 26.10, A = 0.95.
    [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (12, 2.179), (25, 2.060), (60, 2.000), (120, 1.980)],
)
def test_quantiles_of_the_table(freedom: int, quantile: float) -> None:
    assert noise.student_t(freedom) == pytest.approx(quantile, abs=6e-4)
    assert noise.student_t(freedom + 0.7) == noise.student_t(freedom), "rounded down, towards the wider interval"


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    rounds, held = 1500, 0
    for _ in range(rounds):
        before = chance.normal(30, 1, 4).tolist()
        after = chance.normal(32, 3, 7).tolist()
        half = noise.half_width(before, after)
        assert half is not None
        held += abs(fmean(after) - fmean(before) - 2) <= half
    # 95 % or a little more, for rounding down; 0.6 % is the standard error of the share.
    assert 0.93 <= held / rounds <= 0.99


@given(st.lists(st.floats(0, 1e4), max_size=6), st.lists(st.floats(0, 1e4), max_size=6))
def test_symmetric_finite_and_none_with_few_steps(before: list[float], after: list[float]) -> None:
    half = noise.half_width(before, after)
    assert half == noise.half_width(after, before)
    if min(len(before), len(after)) < noise.FEWEST_STEPS:
        assert half is None
    else:
        assert half is not None
        assert math.isfinite(half)
        assert half >= 0


def test_a_step_counts_once_however_many_devices_had_it() -> None:
    assert noise.mean_over_devices([[1.0, 2.0, 3.0], [3.0, 4.0]]) == [2.0, 3.0]
    assert noise.mean_over_devices([[1.0], []]) == []
