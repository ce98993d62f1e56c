"""Pick one typical step and cut it out of the timeline, for drawing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import Attribution, LaneAttribution
from gpudiag.model.event import EventKind
from gpudiag.model.step_view import RankView, StepView, Track
from gpudiag.model.timeline import Lane, Timeline

Columns = NDArray[np.int64]

#: Spans of one row; where there are more, the shortest are left out, which nobody could see.
_MOST_SPANS = 6000
#: Rows of the host are drawn this deep.
_MOST_DEPTH = 4
#: More ranks than this make a page that nobody scrolls.
_MOST_RANKS = 16
_LONGEST_NAME = 160
_HOST_KINDS = {EventKind.OPERATOR: 0, EventKind.ANNOTATION: 1, EventKind.RUNTIME: 2}


class _Names:
    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def index(self, name: str) -> int:
        return self.known.setdefault(name[:_LONGEST_NAME], len(self.known))


def view_of_step(timeline: Timeline, attribution: Attribution) -> StepView | None:
    """The step whose length on the first lane is nearest to that lane's median; None where no lane has a window."""
    lanes = [(lane, part) for lane, part in zip(timeline.lanes, attribution.lanes, strict=True) if len(lane.bounds) > 1]
    if not lanes:
        return None
    first = lanes[0][0]
    lengths = np.diff(first.bounds)
    typical = int(np.abs(lengths - np.median(lengths)).argmin())
    number = int(first.window_steps[typical])
    shown = lanes[:_MOST_RANKS]
    windows = [(lane, part, _window(lane, number, typical)) for lane, part in shown]
    begin = min(int(lane.bounds[window]) for lane, _, window in windows)
    end = max(int(lane.bounds[window + 1]) for lane, _, window in windows)
    names = _Names()
    ranks = tuple(
        RankView(
            rank=lane.rank,
            device=lane.label,
            begin=int(lane.bounds[window]) - begin,
            end=int(lane.bounds[window + 1]) - begin,
            tracks=tuple(_tracks(timeline, lane, part, (begin, end), names)),
        )
        for lane, part, window in windows
    )
    return StepView(
        step=number,
        length=end - begin,
        names=tuple(names.known),
        ranks=ranks,
        ranks_left_out=len(lanes) - len(shown),
    )


def _window(lane: Lane, number: int, otherwise: int) -> int:
    """The lane's window of this step number; the one at the same place where the numbers differ."""
    same = np.flatnonzero(lane.window_steps == number)
    return int(same[0]) if len(same) else min(otherwise, len(lane.bounds) - 2)


def _tracks(timeline: Timeline, lane: Lane, part: LaneAttribution, span: tuple[int, int], names: _Names) -> list[Track]:
    tracks = [_bucket_track(part, span, names)]
    events = timeline.traces[lane.trace].events
    ops = lane.ops
    inside = (ops.end > span[0]) & (ops.start < span[1])
    for stream in np.unique(ops.stream[inside]).tolist() if not lane.is_cpu else []:
        chosen = np.flatnonzero(inside & (ops.stream == stream))
        name = np.array([names.index(events.name_of(int(row))) for row in ops.row[chosen]], np.int64)
        tracks.append(
            _track(
                "device",
                f"stream {stream}",
                (ops.start[chosen], ops.end[chosen], name, ops.op_class[chosen].astype(np.int64)),
                span[0],
            )
        )
    tracks.append(_host_track(timeline, lane, span, names))
    return tracks


def _bucket_track(part: LaneAttribution, span: tuple[int, int], names: _Names) -> Track:
    starts, ends, kinds = [], [], []
    for index, bucket in enumerate(BUCKETS):
        intervals = part.parts[bucket]
        inside = (intervals.end > span[0]) & (intervals.start < span[1])
        starts.append(np.maximum(intervals.start[inside], span[0]))
        ends.append(np.minimum(intervals.end[inside], span[1]))
        kinds.append(np.full(int(inside.sum()), index, np.int64))
    start, end, kind = np.concatenate(starts), np.concatenate(ends), np.concatenate(kinds)
    order = np.argsort(start, kind="stable")
    name = np.array([names.index(BUCKETS[index]) for index in kind[order]], np.int64)
    return _track("buckets", "where time goes", (start[order], end[order], name, kind[order]), span[0])


def _host_track(timeline: Timeline, lane: Lane, span: tuple[int, int], names: _Names) -> Track:
    """The training thread, nested as it was."""
    events = timeline.traces[lane.trace].events
    rows = events.rows_of(*_HOST_KINDS)
    start, end = events.start_ns[rows] + lane.shift_ns, events.end_ns[rows] + lane.shift_ns
    inside = (events.thread[rows] == lane.steps.thread) & (end > span[0]) & (start < span[1]) & (end > start)
    rows, start, end = rows[inside], start[inside], end[inside]
    depth = _depths(start, end)
    shallow = depth < _MOST_DEPTH
    rows, start, end, depth = rows[shallow], start[shallow], end[shallow], depth[shallow]
    name = np.array([names.index(events.name_of(int(row))) for row in rows], np.int64)
    colour = np.array([_HOST_KINDS[EventKind(int(kind))] for kind in events.kind[rows]], np.int64)
    return _track("host", "host", (start, end, name, colour), span[0], depth)


def _depths(start: Columns, end: Columns) -> Columns:
    """How many spans enclose each; starts ascend, and of equal ones the longer comes first."""
    depths = np.zeros(len(start), np.int64)
    open_ends: list[int] = []
    for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        depths[index] = len(open_ends)
        open_ends.append(stop)
    return depths


def _track(
    kind: str, label: str, columns: tuple[Columns, Columns, Columns, Columns], zero: int, depth: Columns | None = None
) -> Track:
    start, end, name, colour = columns
    length = end - start
    keep = np.arange(len(start))
    if len(start) > _MOST_SPANS:
        keep = np.sort(np.argsort(-length, kind="stable")[:_MOST_SPANS])
    deep = np.zeros(len(start), np.int64) if depth is None else depth
    return Track(
        kind=kind,  # type: ignore[arg-type]  # one of the literals, by the callers above
        label=label,
        start=tuple((start[keep] - zero).tolist()),
        length=tuple(length[keep].tolist()),
        name=tuple(name[keep].tolist()),
        colour=tuple(colour[keep].tolist()),
        depth=tuple(deep[keep].tolist()),
        left_out=len(start) - len(keep),
    )
