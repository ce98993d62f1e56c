"""Which gradients travel together."""

from __future__ import annotations

from collections.abc import Sequence

MIB = 1 << 20
#: DistributedDataParallel's defaults: a first bucket of 1 MiB, so that the exchange starts early, then 25 MiB
#: (torch.distributed, `_DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`).
FIRST_MIB, MOST_MIB = 1.0, 25.0


def ddp_buckets(sizes: Sequence[int], bucket_mb: float | None = None) -> list[list[int]]:
    """Numbers of the gradients in each bucket, in the order in which they are ready, as DDP puts them together.

    A bucket is closed by the gradient that takes it to its size or beyond, so one that is large by itself takes what
    came before along (`compute_bucket_assignment_by_size` in PyTorch's reducer.cpp).

    >>> ddp_buckets([MIB // 2, MIB, 30 * MIB, MIB])
    [[0, 1], [2], [3]]
    """
    first = FIRST_MIB if bucket_mb is None else min(FIRST_MIB, bucket_mb)
    limits = [first * MIB, (MOST_MIB if bucket_mb is None else bucket_mb) * MIB]
    buckets: list[list[int]] = []
    now: list[int] = []
    held = 0
    for number, size in enumerate(sizes):
        now.append(number)
        held += size
        if held >= limits[min(len(buckets), 1)]:
            buckets.append(now)
            now, held = [], 0
    return [*buckets, now] if now else buckets
