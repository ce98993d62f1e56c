"""Where most of a difference lies: a bucket on all devices, or what one late rank did that the others wait for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import fsum
from statistics import fmean

from gpudiag.model.diff import BucketChange, Cause, PartChange, RankChange, WaitChange

WAIT = "communication_wait"
#: From this share of the difference on, waiting is what most of it is about: a late rank of two makes half of it.
_WAIT_SHARE = 0.4
#: What has at least this share of something is most of it.
_MOST = 0.5


def find_cause(
    difference_ms: float,
    buckets: Sequence[BucketChange],
    ranks: Sequence[RankChange],
    waits: Sequence[WaitChange],
) -> Cause | None:
    """The cause of a difference of mean step times, in its own direction.

    Args:
        difference_ms: of the profiled step.
        buckets: all eight.
        ranks: every device of both runs, or none where the runs have different ones.
        waits: the waits that changed.

    Returns:
        None where nothing changed in the direction of the difference.
    """
    sign = 1.0 if difference_ms > 0 else -1.0
    waiting = sign * next(bucket.difference_ms for bucket in buckets if bucket.bucket == WAIT)
    if ranks and waiting > 0 and waiting >= _WAIT_SHARE * abs(difference_ms):
        late = _late_rank(sign, ranks, waits)
        if late is not None:
            return late
    most = max(buckets, key=lambda bucket: sign * bucket.difference_ms)
    if difference_ms == 0 or sign * most.difference_ms <= 0:
        return None
    own = _ranks_of(sign, most.bucket, ranks)
    if own:
        parts = [part for rank in own for part in rank.parts] if len(own) == 1 else []
        return Cause(
            bucket=most.bucket,
            ranks=tuple(sorted({rank.rank for rank in own})),
            difference_ms=fmean(rank.buckets_ms[most.bucket] for rank in own),
            part=_main_part(sign, most.bucket, fmean(rank.buckets_ms[most.bucket] for rank in own), parts),
        )
    return Cause(
        bucket=most.bucket,
        difference_ms=most.difference_ms,
        part=_main_part(sign, most.bucket, most.difference_ms, most.parts),
    )


def _late_rank(sign: float, ranks: Sequence[RankChange], waits: Sequence[WaitChange]) -> Cause | None:
    """The rank that most of the waiting was for, if there is one and what it did is known."""
    by_rank: dict[int, list[float]] = defaultdict(list)
    for wait in waits:
        if sign * wait.difference_ms > 0:
            by_rank[wait.on_rank].append(wait.difference_ms)
    if not by_rank:
        return None
    late = max(by_rank, key=lambda rank: (sign * fsum(by_rank[rank]), -rank))
    together = fsum(abs(one) for group in by_rank.values() for one in group)
    own = next((rank for rank in ranks if rank.rank == late), None)
    if own is None or abs(fsum(by_rank[late])) < _MOST * together:
        return None
    bucket = max((b for b in own.buckets_ms if b != WAIT), key=lambda b: sign * own.buckets_ms[b])
    if sign * own.buckets_ms[bucket] <= 0:
        return None
    return Cause(
        bucket=bucket,
        ranks=(late,),
        difference_ms=own.buckets_ms[bucket],
        waiting_ms=fmean(by_rank[late]),
        part=_main_part(sign, bucket, own.buckets_ms[bucket], own.parts),
    )


def _ranks_of(sign: float, bucket: str, ranks: Sequence[RankChange]) -> list[RankChange]:
    """The ranks on which the bucket changed, where it did on a minority of them only; else none."""
    largest = max((sign * rank.buckets_ms[bucket] for rank in ranks), default=0.0)
    own = [rank for rank in ranks if sign * rank.buckets_ms[bucket] >= _MOST * largest > 0]
    return own if len(own) * 2 <= len(ranks) else []


def _main_part(sign: float, bucket: str, change_ms: float, parts: Sequence[PartChange]) -> PartChange | None:
    own = [part for part in parts if part.bucket == bucket]
    most = max(own, key=lambda part: sign * part.difference_ms, default=None)
    return most if most is not None and sign * most.difference_ms >= _MOST * abs(change_ms) else None
