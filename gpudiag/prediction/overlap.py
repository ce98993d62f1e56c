"""Split a step into its phases, and gradients into buckets that are complete at different times of backward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from gpudiag.model.benchmarks.prediction import Compute

MIB = 1 << 20
#: DistributedDataParallel's default sizes of the first bucket and of later buckets. The first bucket is small, so that
#: communication starts early (torch.distributed, `_DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`).
FIRST_MIB, MOST_MIB = 1.0, 25.0
#: Backward's share of forward plus backward: backward computes gradients of inputs and weights, forward only outputs.
BACKWARD_SHARE = 2 / 3
#: Assumed share of the update in a step whose phases are unknown.
_UPDATE_SHARE = 0.06


def ddp_buckets(sizes: Sequence[int], bucket_mb: float | None = None) -> list[list[int]]:
    """Group gradients into buckets as DDP does, and return the indices of the gradients in each bucket.

    A bucket ends with the gradient that fills it, so a large gradient shares its bucket with the preceding gradients
    (`compute_bucket_assignment_by_size` in PyTorch's reducer.cpp).

    Args:
        sizes: bytes of the gradients, in the order in which they are ready.
        bucket_mb: size of a bucket in MiB; None for DDP's default.

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
    """Split `step_ms` (from `source`) into forward, backward and update by assumed shares, if phases are unknown."""
    layers_ms = step_ms * (1 - _UPDATE_SHARE)
    return Compute(
        forward_ms=layers_ms * (1 - BACKWARD_SHARE),
        backward_ms=layers_ms * BACKWARD_SHARE,
        update_ms=step_ms * _UPDATE_SHARE,
        step_ms=step_ms,
        source=source,
    )


def ready_at(shares: Sequence[float], backward_ms: float) -> list[float]:
    """Return the time at which each gradient is ready, in ms from the start of backward.

    Gradients are computed sequentially. `shares` are relative durations of the gradients' computations; if they sum to
    0, the result is empty.
    """
    total = sum(shares)
    return [backward_ms * completed / total for completed in accumulate(shares)] if total else []
