"""Confidence intervals of step times and of what is computed from them.

Consecutive steps are not independent: a slow phase of the machine lasts for several. Their mean is therefore less
certain than scatter / sqrt(n) says. Here n is replaced by the effective sample size of a first-order autoregressive
series, n (1 - r) / (1 + r), r the lag-one autocorrelation (von Storch & Zwiers, Statistical Analysis in Climate
Research, 1999, section 6.6); negative r counts as 0.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Two-sided.
LEVEL = 0.95

_NORMAL = statistics.NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with its 95 % confidence interval, all in one unit."""

    value: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width as a share of the value; infinite where the value is 0."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else math.inf

    def scaled(self, factor: float) -> Estimate:
        """The same in another unit; 0 < factor."""
        return Estimate(value=factor * self.value, low=factor * self.low, high=factor * self.high)

    def inverse(self) -> Estimate:
        """1 / value, for a positive quantity: the relative error is the same, to first order, and always finite."""
        error = self.relative_half_width
        return Estimate(value=1 / self.value, low=max(0.0, 1 - error) / self.value, high=(1 + error) / self.value)

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two independent positive estimates: their relative errors are added in quadrature."""
        ratio = self.value / other.value
        error = math.hypot(self.relative_half_width, other.relative_half_width)
        return Estimate(value=ratio, low=ratio * max(0.0, 1 - error), high=ratio * (1 + error))


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of consecutive measurements and its 95 % interval by Student's t, autocorrelation considered.

    Raises:
        ValueError: fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval needs two values or more, not {n}")
    mean = statistics.fmean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    effective = n / _inflation(values, mean, variance)
    half = student_t(max(1.0, effective - 1)) * math.sqrt(variance / effective)
    return Estimate(value=mean, low=mean - half, high=mean + half)


def sum_of(parts: Sequence[Estimate]) -> Estimate:
    """The sum of independent estimates: half widths are added in quadrature."""
    value = math.fsum(part.value for part in parts)
    half = math.sqrt(math.fsum(((part.high - part.low) / 2) ** 2 for part in parts))
    return Estimate(value=value, low=value - half, high=value + half)


def _inflation(values: Sequence[float], mean: float, variance: float) -> float:
    if variance <= 0 or len(values) < 4:
        return 1.0
    products = itertools.pairwise(values)
    r = math.fsum((a - mean) * (b - mean) for a, b in products) / (variance * (len(values) - 1))
    # Of n values no more than half can be told apart as one slow phase; more would leave nothing to estimate from.
    return min((1 + r) / (1 - r), len(values) / 2) if 0 < r < 1 else 1.0


def student_t(freedom: float, level: float = LEVEL) -> float:
    """The two-sided quantile of Student's t distribution; `freedom` may be a fraction, 1 <= freedom.

    Exact for 1 and 2 degrees; above, the expansion in 1 / freedom of Abramowitz & Stegun, Handbook of Mathematical
    Functions, 26.7.5, which is within 0.5 % at 3 degrees and better above; linear between 1, 2 and 3.
    """
    p = (1 + level) / 2
    if freedom < 3:
        exact = {
            1: math.tan(math.pi * (p - 0.5)),
            2: (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))),
            3: _expansion(3.0, p),
        }
        below = int(freedom)
        return exact[below] + (freedom - below) * (exact[below + 1] - exact[below])
    return _expansion(freedom, p)


def _expansion(freedom: float, p: float) -> float:
    x = _NORMAL.inv_cdf(p)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + math.fsum(term / freedom**power for power, term in enumerate(terms, start=1))
