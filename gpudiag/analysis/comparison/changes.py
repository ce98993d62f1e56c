"""The change of each bucket and its portions, of each rank, and of who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from math import fsum

from gpudiag.analysis.comparison.compared_analysis import ComparedAnalysis, Portions
from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.model.diff import BucketChange, PartChange, RankChange, WaitChange

#: Portions kept of each rank; the largest describe its work, and all of them would be most of the file.
MOST_PARTS = 5


def bucket_changes(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[BucketChange, ...]:
    """Return all eight buckets, in their order; portions only if both analyses have them."""
    changes = []
    portions = _portion_changes(before.portions, after.portions) if _both_have_portions(before, after) else ()
    for bucket in BUCKETS:
        old, new = before.bucket_ms(bucket), after.bucket_ms(bucket)
        parts = tuple(portion for portion in portions if portion.bucket == bucket)
        changes.append(
            BucketChange(
                bucket=bucket,
                before_ms=old,
                after_ms=new,
                difference_ms=new - old,
                parts=parts,
                rest_ms=fsum([new - old, *(-part.difference_ms for part in parts)]),
            )
        )
    return tuple(changes)


def rank_changes(before: ComparedAnalysis, after: ComparedAnalysis) -> tuple[RankChange, ...]:
    """Return the change of each device that both runs have, by rank."""
    both = _both_have_portions(before, after)
    changes = []
    for key in sorted(before.live.keys() & after.live.keys()):
        (old_index, old), (new_index, new) = before.live[key], after.live[key]
        buckets = {bucket: new.buckets_ms.get(bucket, 0.0) - old.buckets_ms.get(bucket, 0.0) for bucket in BUCKETS}
        difference = new.step_ms - old.step_ms
        parts = _portion_changes(before.portions_on(old_index), after.portions_on(new_index)) if both else ()
        changes.append(
            RankChange(
                rank=new.rank,
                device=new.device,
                before_ms=old.step_ms,
                after_ms=new.step_ms,
                difference_ms=difference,
                buckets_ms=buckets,
                unattributed_ms=fsum([difference, *(-change for change in buckets.values())]),
                parts=parts[:MOST_PARTS],
            )
        )
    return tuple(changes)


def wait_changes(before: Analysis, after: Analysis) -> tuple[WaitChange, ...]:
    """Return the change of waits by pair of ranks that both runs have, largest difference first."""
    common = set(before.ranks_present) & set(after.ranks_present)
    waits: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for side, analysis in enumerate((before, after)):
        for wait in analysis.waits:
            if {wait.rank, wait.on_rank} <= common:
                waits[wait.rank, wait.on_rank][side] += wait.ms_per_step
    changes = [
        WaitChange(rank=rank, on_rank=on_rank, before_ms=old, after_ms=new, difference_ms=new - old)
        for (rank, on_rank), (old, new) in waits.items()
    ]
    return tuple(sorted(changes, key=lambda wait: (-abs(wait.difference_ms), wait.rank, wait.on_rank)))


def _both_have_portions(before: ComparedAnalysis, after: ComparedAnalysis) -> bool:
    return bool(before.analysis.portions and after.analysis.portions)


def _portion_changes(before: Portions, after: Portions) -> tuple[PartChange, ...]:
    """Return every portion of either side, largest difference first; a missing portion counts as 0 ms."""
    changes = []
    for key in before.keys() | after.keys():
        bucket, name, group, size_bytes = key
        (old_ms, old_calls), (new_ms, new_calls) = before.get(key, (0.0, 0.0)), after.get(key, (0.0, 0.0))
        changes.append(
            PartChange(
                bucket=bucket,
                name=name,
                group=group,
                size_bytes=size_bytes,
                before_ms=old_ms,
                after_ms=new_ms,
                difference_ms=new_ms - old_ms,
                before_per_step=old_calls,
                after_per_step=new_calls,
            )
        )
    return tuple(sorted(changes, key=_order))


def _order(change: PartChange) -> tuple[float, str, str, str, int]:
    return -abs(change.difference_ms), change.bucket, change.name, change.group, change.size_bytes or 0
