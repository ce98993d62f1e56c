"""Find the location of most of a difference: a bucket, on all or a few devices, or a straggler's work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import fsum
from statistics import fmean

from gpudiag.model.diff import BucketChange, Cause, PartChange, RankChange, WaitChange

WAIT = "communication_wait"
#: From this share of the difference on, the difference is mostly waiting: with a straggler of two ranks it is half.
_WAIT_SHARE = 0.4
#: From this share of something on, it is most of it.
_MOST = 0.5


def find_cause(
    difference_ms: float,
    buckets: Sequence[BucketChange],
    ranks: Sequence[RankChange],
    waits: Sequence[WaitChange],
) -> Cause | None:
    """Find the cause of a difference of mean step times, in its direction.

    Args:
        difference_ms: difference of the profiled step.
        buckets: all eight.
        ranks: every device of both runs, or none if the runs have different ones.
        waits: the waits that changed.

    Returns:
        Return None if nothing changed in the direction of the difference.
    """
    sign = 1.0 if difference_ms > 0 else -1.0
    waiting = sign * next(bucket.difference_ms for bucket in buckets if bucket.bucket == WAIT)
    if ranks and waiting > 0 and waiting >= _WAIT_SHARE * abs(difference_ms):
        straggler = _straggler(sign, ranks, waits)
        if straggler is not None:
            return straggler
    most = max(buckets, key=lambda bucket: sign * bucket.difference_ms)
    if difference_ms == 0 or sign * most.difference_ms <= 0:
        return None
    few = _few_ranks(sign, most.bucket, ranks)
    change_ms = fmean(rank.buckets_ms[most.bucket] for rank in few) if few else most.difference_ms
    parts = most.parts if not few else few[0].parts if len(few) == 1 else ()
    return Cause(
        bucket=most.bucket,
        ranks=tuple(sorted({rank.rank for rank in few})),
        difference_ms=change_ms,
        part=_main_part(sign, most.bucket, change_ms, parts),
    )


def _straggler(sign: float, ranks: Sequence[RankChange], waits: Sequence[WaitChange]) -> Cause | None:
    """Return the rank for which most of the waiting was, if there is one and its change is known."""
    by_rank: dict[int, list[float]] = defaultdict(list)
    for wait in waits:
        if sign * wait.difference_ms > 0:
            by_rank[wait.on_rank].append(wait.difference_ms)
    if not by_rank:
        return None
    late = max(by_rank, key=lambda rank: (sign * fsum(by_rank[rank]), -rank))
    together = fsum(abs(ms) for waits_ms in by_rank.values() for ms in waits_ms)
    change = next((rank for rank in ranks if rank.rank == late), None)
    if change is None or abs(fsum(by_rank[late])) < _MOST * together:
        return None
    others = (bucket for bucket in change.buckets_ms if bucket != WAIT)
    bucket = max(others, key=lambda bucket: sign * change.buckets_ms[bucket])
    if sign * change.buckets_ms[bucket] <= 0:
        return None
    return Cause(
        bucket=bucket,
        ranks=(late,),
        difference_ms=change.buckets_ms[bucket],
        waiting_ms=fmean(by_rank[late]),
        part=_main_part(sign, bucket, change.buckets_ms[bucket], change.parts),
    )


def _few_ranks(sign: float, bucket: str, ranks: Sequence[RankChange]) -> list[RankChange]:
    """Return the ranks on which the bucket changed, if they are at most half of them; else none."""
    largest = max((sign * rank.buckets_ms[bucket] for rank in ranks), default=0.0)
    changed = [rank for rank in ranks if sign * rank.buckets_ms[bucket] >= _MOST * largest > 0]
    return changed if len(changed) * 2 <= len(ranks) else []


def _main_part(sign: float, bucket: str, change_ms: float, parts: Sequence[PartChange]) -> PartChange | None:
    in_bucket = [part for part in parts if part.bucket == bucket]
    most = max(in_bucket, key=lambda part: sign * part.difference_ms, default=None)
    return most if most is not None and sign * most.difference_ms >= _MOST * abs(change_ms) else None
