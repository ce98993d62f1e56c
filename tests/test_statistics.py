"""Test the coverage of confidence intervals, also for correlated steps."""

from __future__ import annotations

import doctest
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpudiag.statistics
from gpudiag.statistics import Estimate, mean_of, student_t, sum_of

STEPS = st.floats(0, 1e4)
FREEDOM = st.floats(1, 1e6)


def test_documented_examples_are_correct() -> None:
    result = doctest.testmod(gpudiag.statistics)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Abramowitz and Stegun, table 26.10, A = 0.95.
    [
        (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (9, 2.262), (12, 2.179), (25, 2.060), (29, 2.045),
        (60, 2.000), (120, 1.980), (1000, 1.962), (math.inf, 1.960),
    ],
)  # fmt: skip
def test_quantiles_equal_published_tables(freedom: float, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, rel=1.3e-3 if freedom < 5 else 3e-4)


@given(FREEDOM, FREEDOM)
def test_more_degrees_of_freedom_narrow_the_interval(one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert student_t(more) <= student_t(less) * (1 + 1e-12)


def slow_phases(correlation: float, *, series: int, steps: int, seed: int) -> list[list[float]]:
    """Return first-order autoregressive series of step times with mean 100 and standard deviation 1."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(series, steps))
    for i in range(1, steps):
        values[:, i] = correlation * values[:, i - 1] + math.sqrt(1 - correlation**2) * values[:, i]
    rows: list[list[float]] = (100 + values).tolist()
    return rows


def coverage(correlation: float, *, series: int = 1000, steps: int = 60) -> float:
    """Return the fraction of intervals that cover the true mean of 100."""
    estimates = [mean_of(values) for values in slow_phases(correlation, series=series, steps=steps, seed=1)]
    return sum(estimate.low <= 100 <= estimate.high for estimate in estimates) / series


def called_different(correlation: float, *, pairs: int, steps: int) -> float:
    """Return the fraction of pairs of equal runs that `gpudiag diff` calls different."""
    values = slow_phases(correlation, series=2 * pairs, steps=steps, seed=steps)
    estimates = [mean_of(run) for run in values]
    differences = [after.minus(before) for before, after in zip(estimates[::2], estimates[1::2], strict=True)]
    return sum(difference.low > 0 or difference.high < 0 for difference in differences) / pairs


def test_intervals_cover_the_mean_of_independent_steps() -> None:
    assert coverage(0.0) == pytest.approx(0.95, abs=0.03)


def test_intervals_cover_the_mean_of_correlated_steps() -> None:
    # Coverage would be about 0.75 without the effective sample size, and 0.93 without the correction of the measured
    # correlation for its bias.
    assert coverage(0.5) > 0.93


@pytest.mark.long
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(("steps", "pairs"), [(20, 4000), (50, 2000), (100, 1000), (200, 500)])
def test_equal_runs_are_called_different_at_the_nominal_rate(correlation: float, steps: int, pairs: int) -> None:
    assert 0.03 <= called_different(correlation, pairs=pairs, steps=steps) <= 0.08


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
def test_intervals_of_the_fewest_unprofiled_steps_are_nearly_nominal(correlation: float) -> None:
    # Ten is the minimum number of unprofiled steps. With correlation 0, 2.7 % of pairs are called different, because
    # correlation that independent steps have by chance widens intervals.
    assert 0.02 <= called_different(correlation, pairs=4000, steps=10) <= 0.085


def test_interval_covers_the_difference_of_runs_with_unequal_scatter() -> None:
    chance = np.random.default_rng(7)
    rounds, held = 1500, 0
    for _ in range(rounds):
        difference = mean_of(chance.normal(32, 3, 7).tolist()).minus(mean_of(chance.normal(30, 1, 4).tolist()))
        held += difference.low <= 2 <= difference.high
    # Correlation by chance widens intervals, so coverage is slightly above 95 %. The standard error of the coverage is
    # 0.6 %.
    assert 0.93 <= held / rounds <= 0.99


@given(st.lists(STEPS, min_size=2, max_size=9), st.lists(STEPS, min_size=2, max_size=9))
def test_difference_is_antisymmetric(before: list[float], after: list[float]) -> None:
    there, back = mean_of(after).minus(mean_of(before)), mean_of(before).minus(mean_of(after))
    assert (back.low, back.value, back.high) == (-there.high, -there.value, -there.low)
    assert all(map(math.isfinite, (there.low, there.high)))


@given(st.lists(st.tuples(st.floats(0.01, 100), FREEDOM), min_size=1, max_size=6))
def test_welch_degrees_of_freedom_lie_between_least_and_sum(parts: list[tuple[float, float]]) -> None:
    total = sum_of([Estimate(value=1, low=1 - half, high=1 + half, freedom=freedom) for half, freedom in parts])
    least, together = min(freedom for _, freedom in parts), sum(freedom for _, freedom in parts)
    assert least * (1 - 1e-6) <= total.freedom <= together * (1 + 1e-6)


@given(st.lists(STEPS, min_size=4, max_size=50))
def test_correlation_only_widens_intervals(values: list[float]) -> None:
    n, half = len(values), mean_of(values).half_width
    independent = student_t(n - 1) * statistics.stdev(values) / math.sqrt(n)
    slack = 1e-9 * (1 + max(values))
    assert half >= mean_of(values, as_measured=True).half_width - slack >= independent - 2 * slack
    assert half <= student_t(1) * statistics.stdev(values) / math.sqrt(2) + slack


@given(st.lists(STEPS, min_size=2, max_size=50), st.floats(0, 1e4))
def test_intervals_do_not_depend_on_offset_or_time_direction(values: list[float], level: float) -> None:
    half = mean_of(values).half_width
    near = pytest.approx(half, rel=1e-5, abs=1e-5)
    assert mean_of([value + level for value in values]).half_width == near
    assert mean_of(values[::-1]).half_width == near


def test_standard_error_uses_the_students_t_quantile() -> None:
    values = [30.0, 31.0, 29.0, 31.5, 29.5]
    assert mean_of(values).standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=50), st.floats(0.1, 10))
def test_intervals_scale_with_units(values: list[float], factor: float) -> None:
    one, other = mean_of(values).scaled(factor), mean_of([factor * value for value in values])
    assert other.value == pytest.approx(one.value)
    assert other.high - other.low == pytest.approx(one.high - one.low, rel=1e-6, abs=1e-6 * one.value)


def test_equal_steps_have_zero_width() -> None:
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


def test_inverse_keeps_relative_error_and_is_finite() -> None:
    inverse = Estimate(value=4, low=0, high=8).inverse()
    assert (inverse.low, inverse.value, inverse.high) == (0, 0.25, 0.5)
