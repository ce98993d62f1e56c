"""Repeat measurements until they are stable, and compute rates of concurrent copies."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Coefficient of variation below which repeats stop.
CV_BOUND = 0.01


@dataclass(frozen=True)
class Settled:
    """Median of repeated rates per flow and of their sum, coefficient of variation, and number of repeats."""

    median: float
    each: tuple[float, ...]
    cv: float
    repeats: int


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return standard deviation over mean; 0 for a single value."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def repeat_until_settled(measure: Callable[[], Sequence[float]], *, least: int = 4, most: int = 10) -> Settled:
    """Repeat until the sum of rates varies by less than CV_BOUND over the last `least` repeats.

    Early disturbances are thus ignored. If `most` is reached, all repeats count. `measure` returns one rate per flow;
    `each` is the median rate of each flow.
    """
    rows: list[Sequence[float]] = []
    recent: list[Sequence[float]] = []
    while len(rows) < most:
        rows.append(measure())
        recent = rows[-least:]
        if len(rows) >= least and coefficient_of_variation([sum(row) for row in recent]) < CV_BOUND:
            break
    else:
        recent = rows
    sums = [sum(row) for row in recent]
    each = tuple(statistics.median(column) for column in zip(*recent, strict=True))
    return Settled(statistics.median(sums), each, coefficient_of_variation(sums), len(rows))


def rates_while_all_run(finished_s: Sequence[Sequence[float]], size: int) -> list[float]:
    """Return the bytes per second of each flow until the first of them ends.

    `finished_s[f][k]` is the time at which flow f had finished k copies of `size` bytes; it is 0 at k = 0. Copies after
    the first flow's end do not count, because the others then have the link to themselves.

    >>> rates_while_all_run([[0, 1, 2], [0, 2, 4]], 10)   # up to 2 s: 20 bytes and 10
    [10.0, 5.0]
    """
    end = min(times[-1] for times in finished_s)
    return [float(np.interp(end, times, np.arange(len(times)) * float(size))) / end for times in finished_s]
