"""Intervals hold what they promise, also for steps that come in slow phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.confidence import Estimate, mean_of, student_t, sum_of


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (29, 2.0452), (1000, 1.9623)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, rel=0.005)


def coverage(correlation: float, *, series: int = 400, steps: int = 60) -> float:
    """How often the interval holds the true mean of 100, for a first-order autoregressive series."""
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(series):
        noise = random.normal(size=steps + 50)
        values = np.zeros(steps + 50)
        for i in range(1, len(values)):
            values[i] = correlation * values[i - 1] + noise[i]
        estimate = mean_of([100 + float(value) for value in values[50:]])
        hits += estimate.low <= 100 <= estimate.high
    return hits / series


def test_intervals_hold_the_mean_of_independent_steps() -> None:
    assert coverage(0.0) == pytest.approx(0.95, abs=0.03)


def test_intervals_know_of_slow_phases() -> None:
    # Without the effective sample size this would be about 0.75.
    assert coverage(0.5) > 0.88


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=50), st.floats(0.1, 10))
def test_units_do_not_matter(values: list[float], factor: float) -> None:
    one, other = mean_of(values).scaled(factor), mean_of([factor * value for value in values])
    assert other.value == pytest.approx(one.value)
    assert other.high - other.low == pytest.approx(one.high - one.low, rel=1e-6, abs=1e-6 * one.value)


def test_equal_steps_are_certain() -> None:
    estimate = mean_of([30.0] * 10)
    assert (estimate.low, estimate.value, estimate.high) == (30.0, 30.0, 30.0)


def test_one_step_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two values"):
        mean_of([1.0])


def test_ratios_and_sums_add_errors_in_quadrature() -> None:
    one = Estimate(value=100, low=97, high=103)
    other = Estimate(value=50, low=48, high=52)
    ratio = one.over(other)
    assert ratio.value == 2
    assert ratio.relative_half_width == pytest.approx(0.05)
    total = sum_of([one, Estimate(value=10, low=6, high=14)])
    assert (total.low, total.high) == (105, 115)


def test_an_inverse_is_as_uncertain_and_always_finite() -> None:
    inverse = Estimate(value=4, low=0, high=8).inverse()
    assert (inverse.low, inverse.value, inverse.high) == (0, 0.25, 0.5)
