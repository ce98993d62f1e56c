"""Repeats, medians and what ran at the same time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Repeats stop when their coefficient of variation is below this.
CV_BOUND = 0.01


@dataclass(frozen=True)
class Settled:
    """The median of repeated rates, how much they varied, and how many there were."""

    median: float
    each: tuple[float, ...]
    cv: float
    repeats: int


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation over mean; 0 for a single value."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def repeat_until_settled(measure: Callable[[], Sequence[float]], *, least: int = 4, most: int = 10) -> Settled:
    """Repeat until the sum of what `measure` returns varies by less than CV_BOUND over the last `least` repeats.

    A burst of interference early on is forgotten that way, unless `most` is reached, when all repeats count.
    `measure` returns one rate per flow; `each` is the median of each.
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
    """Bytes per second of each flow up to the moment when the first of them is done.

    `finished_s[f][k]` is when flow f had finished k copies of `size` bytes, with 0 at k = 0. What happens after the
    first flow has ended does not count, because the rest then have the link to themselves.

    >>> rates_while_all_run([[0, 1, 2], [0, 2, 4]], 10)   # up to 2 s: 20 bytes and 10
    [10.0, 5.0]
    """
    end = min(times[-1] for times in finished_s)
    return [float(np.interp(end, times, np.arange(len(times)) * float(size))) / end for times in finished_s]
