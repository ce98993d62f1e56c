"""Summarise a job's layout: its grid, the communication of each role, and the passes through its pipeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from gpudiag.analysis.parallelism.layout import Layout, find_layout, messages_per_step
from gpudiag.analysis.parallelism.passes import passes_of_step
from gpudiag.analysis.parallelism.roles import role_of_traffic
from gpudiag.intervals import Intervals, intersect, lengths_between, union
from gpudiag.model.analysis import BUCKETS, Finding
from gpudiag.model.parallelism import ROLES, GroupRole, Parallelism, Pipeline, RankPlace, RoleTraffic
from gpudiag.model.timeline import Attribution, DeviceTrack, Timeline, TrackAttribution
from gpudiag.units import milliseconds


def summarise_parallelism(
    timeline: Timeline, attribution: Attribution, findings: Sequence[Finding]
) -> Parallelism | None:
    """Return the layout; None if the job only divides its batches, or its traces do not fit together."""
    layout = find_layout(timeline)
    if layout is None or any(doubt.code == "mixed-runs" for doubt in timeline.validity):
        return None
    return Parallelism(
        sizes=layout.sizes,
        stated=layout.stated,
        traffic=_traffic(timeline, attribution, layout),
        ranks=_places(attribution, layout),
        pipeline=_pipeline(timeline, attribution, layout, findings),
    )


def _traffic(timeline: Timeline, attribution: Attribution, layout: Layout) -> tuple[RoleTraffic, ...]:
    operations: dict[GroupRole, Counter[str]] = defaultdict(Counter)
    size: Counter[GroupRole] = Counter()
    sized: dict[GroupRole, bool] = {}
    exposed: dict[GroupRole, list[tuple[float, float, float]]] = defaultdict(list)
    steps = sum(len(track.window_steps) for track in timeline.tracks)
    for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True):
        table = track.collectives
        inside = (table.start >= track.bounds[0]) & (table.start < track.bounds[-1])
        roles = [_role(layout, track.rank, operation, group) for operation, group, _, _ in table.kinds]
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


def _role(layout: Layout, rank: int, operation: str, group: str) -> GroupRole:
    known = layout.role_of_group.get(rank, {}).get(group)
    if known is not None and known != "unknown":
        return known
    return role_of_traffic({operation: 1})


def _exposed_ms(track: DeviceTrack, attributed: TrackAttribution, chosen: np.ndarray) -> tuple[float, float, float]:
    """Return (transfer, waiting, hidden) of the chosen collectives, in ms per step."""
    spans = union(Intervals(track.collectives.start[chosen], track.collectives.end[chosen]))

    def mean_ms(bucket: str) -> float:
        return milliseconds(float(lengths_between(intersect(spans, attributed.parts[bucket]), track.bounds).mean()))

    return mean_ms("communication_transfer"), mean_ms("communication_wait"), mean_ms("compute")


def _places(attribution: Attribution, layout: Layout) -> tuple[RankPlace, ...]:
    compute = {
        attributed.rank: milliseconds(float(attributed.buckets_ns[:, BUCKETS.index("compute")].mean()))
        for attributed in attribution.tracks
        if len(attributed.buckets_ns)
    }
    mean = {
        stage: float(np.mean([ms for rank, ms in compute.items() if layout.stage(rank) == stage]))
        for stage in {layout.stage(rank) for rank in compute}
    }
    return tuple(
        RankPlace(
            rank=rank,
            position=layout.position.get(rank, {}),
            compute_ms=ms,
            relative=ms / mean[layout.stage(rank)] if mean[layout.stage(rank)] else 1.0,
        )
        for rank, ms in sorted(compute.items())
    )


def _pipeline(
    timeline: Timeline, attribution: Attribution, layout: Layout, findings: Sequence[Finding]
) -> Pipeline | None:
    stages, microbatches = layout.stages, messages_per_step(timeline)
    if stages < 2 or not microbatches:
        return None
    bubble = next((finding.evidence for finding in findings if finding.code == "pipeline-bubble"), {})
    return Pipeline(
        stages=stages,
        microbatches=microbatches,
        bubble_ms=bubble.get("bubble_ms"),
        bubble_percent=bubble.get("bubble_percent"),
        theoretical_percent=100 * (stages - 1) / (microbatches + stages - 1),
        passes=passes_of_step(timeline, attribution, layout, microbatches),
    )
