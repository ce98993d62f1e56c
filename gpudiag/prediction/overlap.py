"""How much of an exchange is left when the compute that it runs beside is over.

Worked example. Backward takes 10 ms and makes two buckets, at 4 and at 10 ms; each takes 5 ms to exchange. The first is
done at 9, hidden; the second at 15: 5 ms are exposed. Were they 8 ms long, the first would end at 12, the second at 20:
10 ms exposed, although 6 ms of the 16 were hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from gpudiag.model.benchmarks.prediction import Compute
from gpudiag.prediction.transfers import Transfer

#: Backward's share of forward and backward: it computes gradients of inputs and of weights, forward the outputs alone.
BACKWARD_SHARE = 2 / 3
#: The update's share of a step of which nothing else is known.
_UPDATE_SHARE = 0.06


def parts_of(step_ms: float, source: str) -> Compute:
    """A step of which only the length is known."""
    work = step_ms * (1 - _UPDATE_SHARE)
    return Compute(
        forward_ms=work * (1 - BACKWARD_SHARE),
        backward_ms=work * BACKWARD_SHARE,
        update_ms=step_ms * _UPDATE_SHARE,
        step_ms=step_ms,
        source=source,
    )


def ready_at(shares: Sequence[float], backward_ms: float) -> list[float]:
    """When each piece is ready, in ms from backward's start, if its part of backward takes this share of it."""
    total = sum(shares)
    return [backward_ms * done / total for done in accumulate(shares)] if total else []


def exposed_after(ended: Iterable[tuple[Transfer, float]], compute_ms: float) -> float:
    """What is left when compute is over, in ms."""
    return max([0.0, *(end - compute_ms for _, end in ended)])
