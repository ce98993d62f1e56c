"""How far a mean of consecutive step times, which may drift, can be off."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Step times are averaged in this many batches, which forget each other where steps drift; a batch has two or more.
_BATCHES = 8


def mean_error(values: Iterable[float]) -> float:
    """Standard error of the mean of consecutive values, which may drift; 0 for fewer than two.

    Of many values the larger of what they and what the means of batches of them say (the method of batch means).
    """
    known = np.array(list(values), np.float64)
    if len(known) < 2:
        return 0.0
    error = float(known.std(ddof=1) / math.sqrt(len(known)))
    if len(known) < 2 * _BATCHES:
        return error
    means = np.array([batch.mean() for batch in np.array_split(known, _BATCHES)])
    return max(error, float(means.std(ddof=1) / math.sqrt(_BATCHES)))
