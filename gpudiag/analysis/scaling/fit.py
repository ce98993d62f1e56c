"""The cost of a step as devices are added, fitted to measured points.

    step(n) = compute + transfer * 2 (n - 1) / n + latency * growth(n)

2 (n - 1) / n is the share of the gradients that crosses each link in an all-reduce (the nccl-tests convention); growth
is n - 1 for what is passed on from device to device (a ring's latency) and log2 n for what halves (a tree's). Three
numbers of devices determine the three terms, and nothing checks them; from the fourth on the deviation does.
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

#: Draws behind each range; fixed, and drawn from a fixed seed, so that a report can be made again.
_DRAWS = 400


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Non-negative terms in milliseconds, and which growth the last one has."""

    compute_ms: float
    transfer_ms: float
    latency_ms: float
    growth: str

    def step_ms(self, devices: float) -> float:
        """The step time on this many devices; 1 <= devices."""
        terms = np.array(_terms(devices, self.growth))
        return float(terms @ np.array((self.compute_ms, self.transfer_ms, self.latency_ms)))


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The cost that fits best, and others that the measurements leave possible.

    Attributes:
        cost: the best.
        possible: fits, by either growth, to what the measurements might as well have been.
        worst_error: largest relative deviation of a measured point from `cost`.
        degrees: measured points less terms; 0 when nothing checks the fit.
    """

    cost: Cost
    possible: tuple[Cost, ...]
    worst_error: float
    degrees: int

    def range_of(self, figure: Callable[[Cost], float]) -> tuple[float, float]:
        """The 95 % range of a figure over all possible costs."""
        values = np.sort([figure(cost) for cost in self.possible])
        low, high = np.quantile(values, (0.025, 0.975))
        return float(low), float(high)


def fit(step_ms: Mapping[int, Estimate]) -> Fit:
    """Fit the cost to step times by number of devices.

    Args:
        step_ms: mean step times; one device and at least one larger number must be among them.

    Raises:
        ValueError: too few points.
    """
    sizes = sorted(step_ms)
    if len(sizes) < 2 or sizes[0] != 1:
        raise ValueError("a fit needs the step time of one device and of at least one larger number")
    values = np.array([step_ms[n].value for n in sizes])
    scatter = np.array([step_ms[n].standard_error for n in sizes])
    # What no run repeats better than is no certainty, however many steps it had.
    errors = np.maximum(scatter, 0.005 * values)
    candidates = [_solve(sizes, values[None, :], errors, growth) for growth in GROWTHS]
    best = min(candidates, key=lambda found: found[1][0])[0][0]
    deviation = max(abs(best.step_ms(n) / step_ms[n].value - 1) for n in sizes)
    spread = np.maximum(errors, deviation * values)
    # A mean is off by Student's t, and by whatever else there is, normally.
    random, shape = np.random.default_rng(0), (_DRAWS, len(sizes))
    freedom = np.array([min(step_ms[n].freedom, 1e6) for n in sizes])
    draws = random.normal(values, np.sqrt(spread**2 - scatter**2), shape)
    draws += scatter * random.standard_t(freedom, shape)
    draws = np.maximum(draws, 0.05 * values)
    possible = tuple(cost for growth in GROWTHS for cost in _solve(sizes, draws, errors, growth)[0])
    return Fit(cost=best, possible=possible, worst_error=deviation, degrees=max(0, len(sizes) - 3))


def _terms(devices: float, growth: str) -> tuple[float, float, float]:
    return 1.0, 2 * (devices - 1) / devices, GROWTHS[growth](devices)


def _solve(sizes: Sequence[int], draws: Array, errors: Array, growth: str) -> tuple[list[Cost], Array]:
    """Weighted non-negative least squares over three terms: every subset of them is tried, which is exact.

    Args:
        sizes: numbers of devices.
        draws: float64[d, len(sizes)], step times in ms; each row is fitted by itself.
        errors: float64[len(sizes)], their standard errors.
        growth: of the last term.

    Returns:
        The cost of each row, and the weighted sum of squares that it leaves.
    """
    matrix = np.array([_terms(n, growth) for n in sizes]) / errors[:, None]
    targets = (draws / errors).T
    best = np.zeros((3, len(draws)))
    best[0] = draws[:, 0]
    least = np.full(len(draws), np.inf)
    for chosen in ((0,), (0, 1), (0, 2), (0, 1, 2)):
        if len(chosen) > len(sizes):
            continue
        part = matrix[:, chosen]
        found, *_ = np.linalg.lstsq(part, targets, rcond=None)
        off = ((part @ found - targets) ** 2).sum(axis=0)
        better = (found >= 0).all(axis=0) & (off < least - 1e-9)
        least = np.where(better, off, least)
        best[:, better] = 0.0
        for term, values in zip(chosen, found, strict=True):
            best[term, better] = values[better]
    costs = [Cost(compute_ms=c, transfer_ms=t, latency_ms=last, growth=growth) for c, t, last in best.T.tolist()]
    return costs, least
