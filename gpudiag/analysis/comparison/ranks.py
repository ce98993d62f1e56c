"""The change on each rank that both runs have, and of who waited for whom."""

from __future__ import annotations

from collections import defaultdict
from math import fsum

from gpudiag.analysis.comparison.measured import Measured
from gpudiag.analysis.comparison.parts import part_changes
from gpudiag.model.analysis import BUCKETS, Analysis
from gpudiag.model.diff import RankChange, WaitChange

#: Parts kept of one rank: the largest say what it did; all of them would be most of the file.
MOST_PARTS = 5


def rank_changes(before: Measured, after: Measured) -> tuple[RankChange, ...]:
    """By rank, and within one by the order of its devices."""
    both = bool(before.analysis.portions and after.analysis.portions)
    changes = []
    for key in sorted(before.live.keys() & after.live.keys()):
        (old_place, old), (new_place, new) = before.live[key], after.live[key]
        buckets = {b: new.buckets_ms.get(b, 0.0) - old.buckets_ms.get(b, 0.0) for b in BUCKETS}
        difference = new.step_ms - old.step_ms
        parts = part_changes(before.parts_on(old_place), after.parts_on(new_place))[:MOST_PARTS] if both else ()
        changes.append(
            RankChange(
                rank=new.rank,
                device=new.device,
                before_ms=old.step_ms,
                after_ms=new.step_ms,
                difference_ms=difference,
                buckets_ms=buckets,
                unattributed_ms=fsum([difference, *(-part for part in buckets.values())]),
                parts=parts,
            )
        )
    return tuple(changes)


def wait_changes(before: Analysis, after: Analysis) -> tuple[WaitChange, ...]:
    """By pair of ranks that both runs have, largest difference first."""
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
