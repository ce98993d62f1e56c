"""Split a step into its phases, and gradients into buckets that become ready during backward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gpudiag.model.benchmarks.prediction import Compute

MIB = 1 << 20
#: DistributedDataParallel's defaults: a first bucket of 1 MiB, so that communication starts early, then 25 MiB
#: (torch.distributed, `_DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`).
FIRST_MIB, MOST_MIB = 1.0, 25.0
#: Backward's share of forward and backward: it computes gradients of inputs and of weights, forward only outputs.
BACKWARD_SHARE = 2 / 3
#: The update's share of a step of which only the duration is known.
_UPDATE_SHARE = 0.06


def ddp_buckets(sizes: Sequence[int], bucket_mb: float | None = None) -> list[list[int]]:
    """Return the indices of the gradients in each bucket, in the order in which they are ready, as DDP groups them.

    The gradient with which a bucket reaches its size closes it, so that a large gradient shares its bucket with the
    preceding ones (`compute_bucket_assignment_by_size` in PyTorch's reducer.cpp).

    >>> ddp_buckets([MIB // 2, MIB, 30 * MIB, MIB])
    [[0, 1], [2], [3]]
    """
    first = FIRST_MIB if bucket_mb is None else min(FIRST_MIB, bucket_mb)
    limits = [first * MIB, (MOST_MIB if bucket_mb is None else bucket_mb) * MIB]
    buckets: list[list[int]] = []
    current: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        current.append(index)
        filled += size
        if filled >= limits[min(len(buckets), 1)]:
            buckets.append(current)
            current, filled = [], 0
    return [*buckets, current] if current else buckets


def parts_of(step_ms: float, source: str) -> Compute:
    """Split a step with known duration only into forward, backward and update."""
    work = step_ms * (1 - _UPDATE_SHARE)
    return Compute(
        forward_ms=work * (1 - BACKWARD_SHARE),
        backward_ms=work * BACKWARD_SHARE,
        update_ms=step_ms * _UPDATE_SHARE,
        step_ms=step_ms,
        source=source,
    )


def ready_at(shares: Sequence[float], backward_ms: float) -> list[float]:
    """Return the time at which each gradient is ready, in ms from the start of backward, by its share of backward."""
    total = sum(shares)
    return [backward_ms * done / total for done in accumulate(shares)] if total else []
