"""The distinct values of a column, and which of a column are among others.

As `np.unique` and `np.isin`, which for columns of integers take several times as long: since NumPy 2.3 the one hashes
what sorts faster, and imports `numpy.ma` for that, which by itself takes as long as reading a small trace. They sort
stably, because that finds what is in order already, as a trace's columns mostly are: a tenth of the time then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """The distinct values of a column without NaN, sorted.

    >>> distinct(np.array([7, 3, 7])).tolist()
    [3, 7]
    """
    ordered = np.sort(values, kind="stable")
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def among(values: NDArray[Scalar], others: NDArray[Scalar]) -> NDArray[np.bool_]:
    """bool[n]: which of n values are among others.

    >>> among(np.array([7, 3, 7]), np.array([9, 7])).tolist()
    [True, False, True]
    """
    if len(others) == 0:
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(others, kind="stable")
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    found: NDArray[np.bool_] = ordered[place] == values
    return found
