"""Transfers over links that carry one transfer at a time: when each ends.

Worked example. GPU 0 owns two tensors of 10 ms each, of which the first goes to GPUs 1 and 2, the second to GPU 1. The
way out of GPU 0 is one: they end at 10, 20 and 30 ms. If GPU 1 sent 10 ms to GPU 2 meanwhile, asked for last, the way
into GPU 2 is busy from 10 to 20, so that one ends at 30 as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One piece on its way.

    Attributes:
        ways: names of the links that it holds from start to end, e.g. `out:0` and `in:1`.
        ready_ms: not before this.
        takes_ms: how long it holds them.
    """

    ways: tuple[str, ...]
    ready_ms: float
    takes_ms: float


def run(transfers: Iterable[Transfer]) -> list[tuple[Transfer, float]]:
    """Each transfer with the time at which it ends, in ms, when links serve them in the order given."""
    free: dict[str, float] = {}
    ended = []
    for one in transfers:
        start = max([one.ready_ms, *(free.get(way, 0.0) for way in one.ways)])
        end = start + one.takes_ms
        for way in one.ways:
            free[way] = end
        ended.append((one, end))
    return ended
