"""The change of each bucket, and of what contributes to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from gpudiag.analysis.comparison.measured import Key, Measured
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.diff import BucketChange, PartChange


def bucket_changes(before: Measured, after: Measured) -> tuple[BucketChange, ...]:
    """All eight buckets, in their order; parts only where both analyses have them."""
    both = bool(before.analysis.portions and after.analysis.portions)
    parts = part_changes(before.parts, after.parts) if both else ()
    changes = []
    for bucket in BUCKETS:
        old, new = before.bucket_ms(bucket), after.bucket_ms(bucket)
        own = tuple(part for part in parts if part.bucket == bucket)
        changes.append(
            BucketChange(
                bucket=bucket,
                before_ms=old,
                after_ms=new,
                difference_ms=new - old,
                parts=own,
                rest_ms=fsum([new - old, *(-part.difference_ms for part in own)]),
            )
        )
    return tuple(changes)


def part_changes(
    before: Mapping[Key, tuple[float, float]], after: Mapping[Key, tuple[float, float]]
) -> tuple[PartChange, ...]:
    """Every part of either side, largest difference first; one that a side does not have took 0 ms there."""
    changes = []
    for key in before.keys() | after.keys():
        bucket, name, group, size_bytes = key
        old_ms, old_calls = before.get(key, (0.0, 0.0))
        new_ms, new_calls = after.get(key, (0.0, 0.0))
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


def _order(part: PartChange) -> tuple[float, str, str, str, int]:
    return -abs(part.difference_ms), part.bucket, part.name, part.group, part.size_bytes or 0
