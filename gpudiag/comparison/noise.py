"""How much of a difference of means the noise of single steps explains."""

from __future__ import annotations

import math
from statistics import fmean, variance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Fewer steps than these say nothing of how steps scatter.
FEWEST_STEPS = 3
_CONFIDENCE = 0.95
#: Student's t of more degrees of freedom is taken to be this one's: 1.972 instead of at least 1.960.
_MOST_FREEDOM = 200


def half_width(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Half of Welch's 95 % interval of the difference of two means; None with fewer than `FEWEST_STEPS` in either.

    h = t(nu) sqrt(s1²/n1 + s2²/n2), with nu by Welch and Satterthwaite, rounded down, which errs towards a wider
    interval (B. L. Welch, Biometrika 34 (1947), 28-35). Steps count as independent of each other; what changes from one
    start of a job to the next (placement, clocks, neighbours) is not in it.

    >>> round(half_width([10, 11, 12], [10, 11, 12]), 4)
    2.267
    """
    if min(len(before), len(after)) < FEWEST_STEPS:
        return None
    parts = [(variance(times) / len(times), len(times)) for times in (before, after)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0
    # Divided by the total first: the square of a tiny variance would be 0.
    freedom = 1 / sum((part / total) ** 2 / (count - 1) for part, count in parts)
    return student_t(freedom) * math.sqrt(total)


def student_t(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t with `freedom` (at least 1) rounded down.

    >>> [round(student_t(n), 3) for n in (1, 2, 4, 5, 10, 30, 120)]
    [12.706, 4.303, 2.776, 2.571, 2.228, 2.042, 1.98]
    """
    # A hair is added so that what is 4 but for rounding stays 4.
    whole = min(max(int(freedom + 1e-9), 1), _MOST_FREEDOM)
    low, high = 0.0, 16.0
    for _ in range(60):
        middle = (low + high) / 2
        if _within(middle, whole) < _CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t), by the finite series of Abramowitz and Stegun, 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def mean_over_devices(times: Sequence[Sequence[float]]) -> list[float]:
    """The i-th step's time averaged over the devices, for as many steps as all of them have.

    Ranks of one job end their steps together, so their times are no independent samples: a step counts once.
    """
    return [fmean(step) for step in zip(*times, strict=False)]
