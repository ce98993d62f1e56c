"""Summarise how a job divides its work: its grid, the communication of each role, and the passes of its pipeline."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from gpudiag.analysis.parallelism.passes import passes_of_step
from gpudiag.analysis.parallelism.rank_grid import RankGrid, find_grid
from gpudiag.analysis.parallelism.roles import role_of_traffic
from gpudiag.analysis.parallelism.schedule import schedule_of
from gpudiag.intervals import Intervals, intersect, lengths_between, union
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.parallelism import (
    ROLES,
    GroupRole,
    Parallelism,
    PipelineShape,
    RankPlace,
    RoleTraffic,
    theoretical_bubble_percent,
)
from gpudiag.model.timeline import Attribution, DeviceTrack, Timeline, TrackAttribution
from gpudiag.units import milliseconds


def summarise_parallelism(
    timeline: Timeline, attribution: Attribution, sample: Timeline | None = None
) -> Parallelism | None:
    """Return the summary; None if ranks differ only in their data, or if the traces are of different runs.

    Args:
        timeline: the tracks of all ranks.
        attribution: the buckets of the tracks.
        sample: ranks of a large job whose events show the schedule; all ranks by default.
    """
    grid = find_grid(timeline)
    if grid is None or any(doubt.code == "mixed-runs" for doubt in timeline.validity):
        return None
    return Parallelism(
        sizes=grid.sizes,
        stated=grid.stated,
        traffic=_traffic(timeline, attribution, grid),
        ranks=_places(attribution, grid),
        pipeline=_pipeline(timeline, attribution, grid, sample or timeline),
    )


def _traffic(timeline: Timeline, attribution: Attribution, grid: RankGrid) -> tuple[RoleTraffic, ...]:
    """Return the communication of each role per step: maximum times over devices, sizes if known for all calls."""
    operations: dict[GroupRole, Counter[str]] = defaultdict(Counter)
    size: Counter[GroupRole] = Counter()
    sized: dict[GroupRole, bool] = {}
    exposed: dict[GroupRole, list[tuple[float, float, float]]] = defaultdict(list)
    steps = sum(len(track.window_steps) for track in timeline.tracks)
    for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True):
        table = track.collectives
        inside = (table.start >= track.bounds[0]) & (table.start < track.bounds[-1])
        roles = [_role(grid, track.rank, operation, group) for operation, group, _, _ in table.kinds]
        for role in dict.fromkeys(roles):
            chosen = inside & np.array([other == role for other in roles], np.bool_)[table.kind]
            for (operation, _, _, size_bytes), count in zip(
                table.kinds, np.bincount(table.kind[chosen], minlength=len(table.kinds)).tolist(), strict=True
            ):
                if count:
                    operations[role][operation] += count
                    size[role] += (size_bytes or 0) * count
                    sized[role] = sized.get(role, True) and size_bytes is not None
            exposed[role].append(_exposed_ms(track, attributed, chosen))
    return tuple(
        RoleTraffic(
            role=role,
            operations={operation: count / steps for operation, count in operations[role].items()},
            transfer_ms=max(transfer for transfer, _, _ in exposed[role]),
            wait_ms=max(wait for _, wait, _ in exposed[role]),
            hidden_ms=max(hidden for _, _, hidden in exposed[role]),
            size_bytes=round(size[role] / steps) if sized[role] else None,
        )
        for role in sorted(operations, key=ROLES.index)
    )


def _role(grid: RankGrid, rank: int, operation: str, group: str) -> GroupRole:
    known = grid.role_of_group.get(rank, {}).get(group)
    if known is not None and known != "unknown":
        return known
    return role_of_traffic({operation: 1})


def _exposed_ms(track: DeviceTrack, attributed: TrackAttribution, chosen: np.ndarray) -> tuple[float, float, float]:
    """Return (transfer, waiting, hidden) of the chosen collectives, in ms per step."""
    spans = union(Intervals(track.collectives.start[chosen], track.collectives.end[chosen]))

    def mean_ms(bucket: str) -> float:
        return milliseconds(float(lengths_between(intersect(spans, attributed.parts[bucket]), track.bounds).mean()))

    return mean_ms("communication_transfer"), mean_ms("communication_wait"), mean_ms("compute")


def _places(attribution: Attribution, grid: RankGrid) -> tuple[RankPlace, ...]:
    """Return each rank's position in the grid, and its compute relative to the mean of its stage."""
    compute = {
        attributed.rank: milliseconds(float(attributed.buckets_ns[:, BUCKETS.index("compute")].mean()))
        for attributed in attribution.tracks
        if len(attributed.buckets_ns)
    }
    mean = {
        stage: float(np.mean([ms for rank, ms in compute.items() if grid.stage(rank) == stage]))
        for stage in {grid.stage(rank) for rank in compute}
    }
    return tuple(
        RankPlace(
            rank=rank,
            position=grid.position.get(rank, {}),
            compute_ms=ms,
            relative=ms / mean[grid.stage(rank)] if mean[grid.stage(rank)] else 1.0,
        )
        for rank, ms in sorted(compute.items())
    )


def _pipeline(timeline: Timeline, attribution: Attribution, grid: RankGrid, sample: Timeline) -> PipelineShape | None:
    """Return the pipeline's shape, with the passes of one step; None without a pipeline of known schedule.

    `sample` has the ranks whose events show the schedule.
    """
    stages, schedule = grid.stages, schedule_of(sample, grid)
    if schedule is None:
        return None
    return PipelineShape(
        stages=stages,
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        theoretical_percent=theoretical_bubble_percent(stages, schedule.microbatches, schedule.chunks),
        passes=passes_of_step(timeline, attribution, grid, schedule),
    )
