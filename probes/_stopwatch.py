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
    """Result of repeated measurements of the rates of flows.

    Attributes:
        median: median of the sum of all flows' rates, in the unit of the rates.
        each: median rate of each flow.
        cv: coefficient of variation of the sum.
        repeats: number of measurements.
    """

    median: float
    each: tuple[float, ...]
    cv: float
    repeats: int


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return standard deviation over mean; 0 for a single value."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def repeat_until_settled(measure: Callable[[], Sequence[float]], *, least: int = 4, most: int = 10) -> Settled:
    """Repeat `measure`, which returns one rate per flow, until the sums of rates of the last `least` repeats agree.

    Sums agree if their coefficient of variation is below CV_BOUND. The result is computed from the last repeats only,
    so that early disturbances are ignored. If `most` repeats do not suffice, the result is computed from all repeats.
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
    """Return the bytes per second of each flow until the first flow ends.

    `finished_s[f][k]` is the time at which flow f had finished k copies of `size` bytes (0 for k = 0). Copies after
    the end of the first flow do not count, because fewer flows share the link then.

    >>> rates_while_all_run([[0, 1, 2], [0, 2, 4]], 10)   # up to 2 s: 20 bytes and 10
    [10.0, 5.0]
    """
    end = min(times[-1] for times in finished_s)
    return [float(np.interp(end, times, np.arange(len(times)) * float(size))) / end for times in finished_s]
