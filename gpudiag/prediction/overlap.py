"""How much of an exchange is left when the compute that it runs beside is over.

Worked example. Backward takes 10 ms and makes two buckets, at 4 and at 10 ms; each takes 5 ms to exchange. The first is
done at 9, hidden; the second at 15: 5 ms are exposed. Were they 8 ms long, the first would end at 12, the second at 20:
10 ms exposed, although 6 ms of the 16 were hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from gpudiag.prediction.transfers import Transfer

#: Backward's share of forward and backward: it computes gradients of inputs and of weights, forward the outputs alone.
BACKWARD_SHARE = 2 / 3


def ready_at(shares: Sequence[float], backward_ms: float) -> list[float]:
    """When each piece is ready, in ms from backward's start, if its part of backward takes this share of it."""
    total = sum(shares)
    return [backward_ms * done / total for done in accumulate(shares)] if total else []


def exposed_after(ended: Iterable[tuple[Transfer, float]], compute_ms: float) -> float:
    """What is left when compute is over, in ms."""
    return max([0.0, *(end - compute_ms for _, end in ended)])


def forward_stall(
    ended: Iterable[tuple[Transfer, float]], shares: Sequence[float], forward_ms: float, gpu: int
) -> float:
    """How much longer forward takes on `gpu` when the part that uses piece i waits until piece i has arrived."""
    arrival: dict[int, float] = {}
    for one, end in ended:
        if one.to == gpu:
            arrival[one.piece] = max(end, arrival.get(one.piece, 0.0))
    total = sum(shares) or 1.0
    now = 0.0
    for piece, share in enumerate(shares):
        now = max(now, arrival.get(piece, 0.0)) + forward_ms * share / total
    return max(0.0, now - forward_ms)
