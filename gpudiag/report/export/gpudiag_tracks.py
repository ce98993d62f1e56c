"""gpudiag's tracks above a device's streams: its steps, what each instant counts for, and whom it waited for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import LaneAttribution
from gpudiag.model.timeline import Lane
from gpudiag.report.export.model import Track, TrackKind

Times = NDArray[np.int64]

STEPS, PARTS, WAITS = "gpudiag steps", "gpudiag buckets", "gpudiag waits"


def gpudiag_tracks(lane: Lane, cut: LaneAttribution) -> tuple[Track, ...]:
    """The tracks of one lane, on the timeline's clock; one without events is left out."""
    tracks = (_steps(lane), _parts(cut), _waits(lane))
    return tuple(track for track in tracks if len(track))


def _steps(lane: Lane) -> Track:
    numbers = lane.window_steps
    return Track(
        kind=TrackKind.GPUDIAG,
        title=STEPS,
        ident=0,
        start=lane.bounds[:-1],
        end=lane.bounds[1:],
        name=np.arange(len(numbers), dtype=np.int32),
        names=tuple(f"step {number}" for number in numbers.tolist()),
        step=numbers.astype(np.int64),
    )


def _parts(cut: LaneAttribution) -> Track:
    parts = [cut.parts[bucket] for bucket in BUCKETS]
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    name = np.repeat(np.arange(len(BUCKETS), dtype=np.int32), [len(part) for part in parts])
    return Track(
        kind=TrackKind.GPUDIAG,
        title=PARTS,
        ident=1,
        start=start[order],
        end=np.concatenate([part.end for part in parts])[order],
        name=name[order],
        names=BUCKETS,
    )


def _waits(lane: Lane) -> Track:
    """From each arrival at a collective to that of the last rank; where two overlap, the later begins later."""
    table = lane.collectives
    waits = (table.last_arrival > table.start) & (table.start >= lane.bounds[0]) & (table.start < lane.bounds[-1])
    start, end, rank = table.start[waits], table.last_arrival[waits], table.last_rank[waits]
    begin = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
    kept = end > begin
    ranks = np.unique(rank[kept])
    return Track(
        kind=TrackKind.GPUDIAG,
        title=WAITS,
        ident=2,
        start=begin[kept],
        end=end[kept],
        name=np.searchsorted(ranks, rank[kept]).astype(np.int32),
        names=tuple(
            f"waits for rank {number}" if number >= 0 else "waits for another rank" for number in ranks.tolist()
        ),
    )
