"""Divide the time of a set of intervals among the ops that run in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals


def equal_shares(ops: Intervals, spans: Intervals) -> NDArray[np.float64]:
    """float64[n], ns: what each of n raw intervals gets of a normal set if each instant is shared equally.

    >>> from gpudiag.intervals import as_set
    >>> ops = Intervals(np.array([0, 4]), np.array([6, 9]))
    >>> equal_shares(ops, as_set([(0, 9)])).tolist(), equal_shares(ops, as_set([(5, 20)])).tolist()
    ([5.0, 4.0], [0.5, 3.5])
    """
    edges = np.concatenate([ops.start, ops.end, spans.start, spans.end])
    order = np.argsort(edges, kind="stable")  # four columns that are in order, or nearly
    opens = np.repeat([1, -1, 0, 0], [len(ops), len(ops), len(spans), len(spans)])[order]
    covers = np.repeat([0, 0, 1, -1], [len(ops), len(ops), len(spans), len(spans)])[order]
    running, inside = np.cumsum(opens)[:-1], np.cumsum(covers)[:-1]
    piece = np.where(running > 0, inside * np.diff(edges[order]) / np.maximum(running, 1), 0.0)
    done = np.zeros(len(edges))
    done[order[1:]] = np.cumsum(piece)
    shares: NDArray[np.float64] = done[len(ops) : 2 * len(ops)] - done[: len(ops)]
    return shares
