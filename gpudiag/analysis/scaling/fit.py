"""Fit a model of step time against number of devices to measured points.

    step(n) = compute + transfer * 2 (n - 1) / n + latency * growth(n)

2 (n - 1) / n is the share of the gradients that crosses each link in an all-reduce (the nccl-tests convention). The
latency grows by n - 1 in a ring and by log2 n in a tree. Three numbers of devices determine the three terms exactly;
only a fourth allows a check of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.statistics import Estimate

Array = NDArray[np.float64]

GROWTHS: Mapping[str, Callable[[float], float]] = {"n - 1": lambda n: n - 1.0, "log2 n": math.log2}

#: Random draws for each range. The seed is fixed, so that reports are reproducible.
_DRAWS = 400


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Non-negative terms in milliseconds, and the growth of the latency term."""

    compute_ms: float
    transfer_ms: float
    latency_ms: float
    growth: str

    def step_ms(self, devices: float) -> float:
        """Return the step time in ms on `devices` >= 1 devices."""
        terms = np.array(_terms(devices, self.growth))
        return float(terms @ np.array((self.compute_ms, self.transfer_ms, self.latency_ms)))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The best fit, and other fits that agree with the measurements.

    Attributes:
        cost: the best fit.
        possible: fits to random draws from the distribution of the measurements, with either growth.
        worst_error: largest relative deviation of a measured point from `cost`.
        degrees: degrees of freedom: points minus terms. At 0, the fit is exact and unchecked.
    """

    cost: StepCost
    possible: tuple[StepCost, ...]
    worst_error: float
    degrees: int

    def range_of(self, figure: Callable[[StepCost], float]) -> tuple[float, float]:
        """Return the 95 % range of a figure over all possible costs."""
        values = np.sort([figure(cost) for cost in self.possible])
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)


def fit(step_ms: Mapping[int, Estimate]) -> Fit:
    """Fit the cost to step times by number of devices.

    Args:
        step_ms: mean step times; must contain one device and at least one larger number.

    Raises:
        ValueError: too few points.
    """
    sizes = sorted(step_ms)
    if len(sizes) < 2 or sizes[0] != 1:
        raise ValueError("a fit needs the step time of one device and of at least one larger number")
    values = np.array([step_ms[n].value for n in sizes])
    scatter = np.array([step_ms[n].standard_error for n in sizes])
    # Repeated runs differ by at least this much, regardless of their number of steps.
    errors = np.maximum(scatter, 0.005 * values)
    candidates = [_solve(sizes, values[None, :], errors, growth) for growth in GROWTHS]
    best = min(candidates, key=lambda solution: solution[1][0])[0][0]
    deviation = max(abs(best.step_ms(n) / step_ms[n].value - 1) for n in sizes)
    spread = np.maximum(errors, deviation * values)
    # The measured mean deviates by Student's t; the remaining error is normal.
    random, shape = np.random.default_rng(0), (_DRAWS, len(sizes))
    freedom = np.array([min(step_ms[n].freedom, 1e6) for n in sizes])
    draws = random.normal(values, np.sqrt(spread**2 - scatter**2), shape)
    draws += scatter * random.standard_t(freedom, shape)
    draws = np.maximum(draws, 0.05 * values)
    possible = tuple(cost for growth in GROWTHS for cost in _solve(sizes, draws, errors, growth)[0])
    return Fit(cost=best, possible=possible, worst_error=deviation, degrees=max(0, len(sizes) - 3))


def _terms(devices: float, growth: str) -> tuple[float, float, float]:
    return 1.0, 2 * (devices - 1) / devices, GROWTHS[growth](devices)


def _solve(sizes: Sequence[int], draws: Array, errors: Array, growth: str) -> tuple[list[StepCost], Array]:
    """Solve weighted non-negative least squares over three terms exactly, by trying every subset of them.

    Args:
        sizes: numbers of devices.
        draws: float64[d, len(sizes)], step times in ms; each row is fitted separately.
        errors: float64[len(sizes)], standard errors of the step times.
        growth: growth of the latency term.

    Returns:
        The cost of each row, and its weighted sum of squares.
    """
    matrix = np.array([_terms(n, growth) for n in sizes]) / errors[:, None]
    targets = (draws / errors).T
    best = np.zeros((3, len(draws)))
    best[0] = draws[:, 0]
    least = np.full(len(draws), np.inf)
    for chosen in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        if len(chosen) > len(sizes):
            continue
        columns = matrix[:, chosen]
        solution, *_ = np.linalg.lstsq(columns, targets, rcond=None)
        squares = ((columns @ solution - targets) ** 2).sum(axis=0)
        better = (solution >= 0).all(axis=0) & (squares < least - 1e-9)
        least = np.where(better, squares, least)
        best[:, better] = 0.0
        for term, values in zip(chosen, solution, strict=True):
            best[term, better] = values[better]
    costs = [StepCost(compute_ms=c, transfer_ms=t, latency_ms=last, growth=growth) for c, t, last in best.T.tolist()]
    return costs, least
