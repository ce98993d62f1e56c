"""gpudiag's tracks above a device's streams: steps, buckets, and waits for other ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import intersect, subtract
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, Timeline
from gpudiag.report.export.model import ExportTrack, TrackKind

STEPS, PARTS, WAITS = "gpudiag steps", "gpudiag buckets", "gpudiag waits"
#: Two parts of the bucket `idle` that have their own name on the track.
UNMARKED_INPUT, QUEUED = "idle: input without marks", "idle: the next op is queued"


def gpudiag_tracks(timeline: Timeline, attribution: Attribution, index: int) -> tuple[ExportTrack, ...]:
    """Return the tracks of a device track, on the timeline's clock; empty tracks are omitted."""
    device_track = timeline.tracks[index]
    tracks = (
        _steps(device_track),
        _buckets(attribution.tracks[index]),
        _waits(device_track, timeline.whole_collectives(device_track)),
    )
    return tuple(track for track in tracks if len(track))


def _steps(device_track: DeviceTrack) -> ExportTrack:
    numbers = device_track.window_steps
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=STEPS,
        ident=0,
        start=device_track.bounds[:-1],
        end=device_track.bounds[1:],
        name=np.arange(len(numbers), dtype=np.int32),
        names=tuple(f"step {number}" for number in numbers.tolist()),
        step=numbers.astype(np.int64),
    )


def _buckets(attributed: TrackAttribution) -> ExportTrack:
    unmarked = intersect(attributed.parts["idle"], attributed.unmarked_input)
    rest = subtract(attributed.parts["idle"], unmarked)
    queued = intersect(rest, attributed.queued)
    parts = {**attributed.parts, "idle": subtract(rest, queued), UNMARKED_INPUT: unmarked, QUEUED: queued}
    start = np.concatenate([intervals.start for intervals in parts.values()])
    order = np.argsort(start, kind="stable")
    name = np.repeat(np.arange(len(parts), dtype=np.int32), [len(intervals) for intervals in parts.values()])
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=PARTS,
        ident=1,
        start=start[order],
        end=np.concatenate([intervals.end for intervals in parts.values()])[order],
        name=name[order],
        names=tuple(parts),
    )


def _waits(device_track: DeviceTrack, whole: NDArray[np.bool_]) -> ExportTrack:
    """Return waits from each arrival at a collective until the last rank's; overlaps are cut from the later wait."""
    table = device_track.collectives
    waits = (
        (table.last_arrival > table.start)
        & (table.start >= device_track.bounds[0])
        & (table.start < device_track.bounds[-1])
    )
    start, end, rank = table.start[waits], table.last_arrival[waits], np.where(whole, table.last_rank, UNKNOWN)[waits]
    begin = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
    kept = end > begin
    ranks = np.unique(rank[kept])
    return ExportTrack(
        kind=TrackKind.GPUDIAG,
        title=WAITS,
        ident=2,
        start=begin[kept],
        end=end[kept],
        name=np.searchsorted(ranks, rank[kept]).astype(np.int32),
        names=tuple("waits" if number == UNKNOWN else f"waits for rank {number}" for number in ranks.tolist()),
    )
