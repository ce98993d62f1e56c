"""Pick a typical step and some others, and cut them out of the timeline, for drawing."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct, intersect, median, subtract
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.attribution import Attribution, TrackAttribution
from gpudiag.model.event import EventKind
from gpudiag.model.step_view import DEVICE_COLOURS, UNMARKED_INPUT, RankView, StepTrack, StepView, WaitView
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, Timeline

Columns = NDArray[np.int64]

#: Spans of one row; where there are more, the shortest are left out, which nobody could see.
_MOST_SPANS = 6000
#: Rows of the host are drawn this deep.
_MOST_DEPTH = 4
#: More ranks than this make a page that nobody scrolls.
_MOST_RANKS = 16
#: Steps beside the typical one, from the shortest to the longest.
_MOST_OTHERS = 4
#: Steps within this share of the median are all typical.
_TYPICAL = 0.02
#: Waits shorter than this share of what is drawn cannot be seen, and more of them than that not be told apart.
_SEEN_WAIT = 0.005
_MOST_WAITS = 96
_LONGEST_NAME = 160
_HOST_KINDS = {EventKind.OPERATOR: 0, EventKind.ANNOTATION: 1, EventKind.RUNTIME: 2}


class _Names:
    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def index(self, name: str) -> int:
        return self.known.setdefault(name[:_LONGEST_NAME], len(self.known))


def view_of_step(timeline: Timeline, attribution: Attribution) -> StepView | None:
    """A step whose length on the first lane is near that lane's median, and others; None where no lane has a window.

    Of several that are near it the last: before it, lanes that begin late have something to show.
    """
    device_tracks = [
        (device_track, part)
        for device_track, part in zip(timeline.tracks, attribution.tracks, strict=True)
        if len(device_track.bounds) > 1
    ]
    if not device_tracks:
        return None
    lengths = np.diff(device_tracks[0][0].bounds)
    away = np.abs(lengths - median(lengths))
    typical = int(np.flatnonzero(away <= away.min() + _TYPICAL * median(lengths))[-1])
    by_length = [place for place in np.argsort(lengths, kind="stable").tolist() if place != typical]
    chosen = distinct(np.linspace(0, len(by_length) - 1, min(len(by_length), _MOST_OTHERS)).round().astype(int))
    names = _Names()
    view = _view(timeline, device_tracks, typical, names)
    others = tuple(
        _view(timeline, device_tracks, place, names) for place in sorted(by_length[index] for index in chosen)
    )
    return msgspec.structs.replace(view, names=tuple(names.known), others=others)


def _view(
    timeline: Timeline, device_tracks: list[tuple[DeviceTrack, TrackAttribution]], place: int, names: _Names
) -> StepView:
    """The step at this place of the first lane, on all lanes; without the names."""
    number = int(device_tracks[0][0].window_steps[place])
    shown = device_tracks[:_MOST_RANKS]
    windows = [(device_track, part, _window(device_track, number, place)) for device_track, part in shown]
    begin = min(int(device_track.bounds[window]) for device_track, _, window in windows)
    end = max(int(device_track.bounds[window + 1]) for device_track, _, window in windows)
    ranks = tuple(
        RankView(
            rank=device_track.rank,
            device=device_track.label,
            begin=int(device_track.bounds[window]) - begin,
            end=int(device_track.bounds[window + 1]) - begin,
            tracks=tuple(_tracks(timeline, device_track, part, (begin, end), names)),
        )
        for device_track, part, window in windows
    )
    waits = [wait for device_track, _ in shown for wait in _waits(timeline, device_track, begin, end)]
    return StepView(
        step=number,
        length=end - begin,
        names=(),
        ranks=ranks,
        ranks_left_out=len(device_tracks) - len(shown),
        waits=tuple(sorted(waits, key=lambda wait: -wait.length)[:_MOST_WAITS]),
    )


def _waits(timeline: Timeline, device_track: DeviceTrack, begin: int, end: int) -> list[WaitView]:
    """From the lane's arrivals at collectives to those of the last ranks, where it is known who they are."""
    table = device_track.collectives
    start, until = np.maximum(table.start, begin), np.minimum(table.last_arrival, end)
    seen = (until - start >= _SEEN_WAIT * (end - begin)) & (table.last_rank != UNKNOWN)
    rows = np.flatnonzero(seen & timeline.whole_collectives(device_track))
    return [
        WaitView(
            rank=device_track.rank,
            on_rank=int(table.last_rank[row]),
            start=int(start[row]) - begin,
            length=int(until[row] - start[row]),
        )
        for row in rows.tolist()
        if table.last_rank[row] != device_track.rank
    ]


def _window(device_track: DeviceTrack, number: int, otherwise: int) -> int:
    """The lane's window of this step number; the one at the same place where the numbers differ."""
    same = np.flatnonzero(device_track.window_steps == number)
    return int(same[0]) if len(same) else min(otherwise, len(device_track.bounds) - 2)


def _tracks(
    timeline: Timeline, device_track: DeviceTrack, part: TrackAttribution, span: tuple[int, int], names: _Names
) -> list[StepTrack]:
    tracks = [_bucket_track(part, span, names)]
    events = timeline.traces[device_track.trace].events
    ops = device_track.ops
    inside = (ops.end > span[0]) & (ops.start < span[1])
    for stream in distinct(ops.stream[inside]).tolist() if not device_track.is_cpu else []:
        chosen = np.flatnonzero(inside & (ops.stream == stream))
        name = np.array([names.index(events.name_of(int(row))) for row in ops.row[chosen]], np.int64)
        kind = ops.op_class[chosen].astype(np.int64)
        tracks.append(
            _track(
                "device",
                f"{_contents(kind, ops.end[chosen] - ops.start[chosen])}, stream {stream}",
                (ops.start[chosen], ops.end[chosen], name, kind),
                span[0],
            )
        )
    tracks.append(_host_track(timeline, device_track, span, names))
    return tracks


def _contents(op_class: Columns, length: Columns) -> str:
    """What takes most of a stream's time, in a word."""
    return DEVICE_COLOURS[int(np.bincount(op_class, length, len(DEVICE_COLOURS)).argmax())]


def _bucket_track(part: TrackAttribution, span: tuple[int, int], names: _Names) -> StepTrack:
    """Each bucket's intervals; of what is idle, that which is taken for input has a name of its own."""
    within = Intervals(np.array([span[0]]), np.array([span[1]]))
    named = [(bucket, place, part.parts[bucket]) for place, bucket in enumerate(BUCKETS)]
    _, idle_place, idle = named.pop()
    named += [
        ("idle", idle_place, subtract(idle, part.unmarked_input)),
        (UNMARKED_INPUT, idle_place, intersect(idle, part.unmarked_input)),
    ]
    cut = [(names.index(name), place, intersect(intervals, within)) for name, place, intervals in named]
    start = np.concatenate([intervals.start for _, _, intervals in cut])
    end = np.concatenate([intervals.end for _, _, intervals in cut])
    name = np.repeat([name for name, _, _ in cut], [len(intervals) for _, _, intervals in cut])
    kind = np.repeat([place for _, place, _ in cut], [len(intervals) for _, _, intervals in cut])
    order = np.argsort(start, kind="stable")
    return _track("buckets", "where time goes", (start[order], end[order], name[order], kind[order]), span[0])


def _host_track(timeline: Timeline, device_track: DeviceTrack, span: tuple[int, int], names: _Names) -> StepTrack:
    """The training thread, nested as it was."""
    events = timeline.traces[device_track.trace].events
    rows = events.rows_of(*_HOST_KINDS)
    start, end = events.start_ns[rows] + device_track.shift_ns, events.end_ns[rows] + device_track.shift_ns
    inside = (events.thread[rows] == device_track.steps.thread) & (end > span[0]) & (start < span[1]) & (end > start)
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
) -> StepTrack:
    start, end, name, colour = columns
    length = end - start
    keep = np.arange(len(start))
    if len(start) > _MOST_SPANS:
        keep = np.sort(np.argsort(-length, kind="stable")[:_MOST_SPANS])
    deep = np.zeros(len(start), np.int64) if depth is None else depth
    return StepTrack(
        kind=kind,  # type: ignore[arg-type]  # one of the literals, by the callers above
        label=label,
        start=tuple((start[keep] - zero).tolist()),
        length=tuple(length[keep].tolist()),
        name=tuple(name[keep].tolist()),
        colour=tuple(colour[keep].tolist()),
        depth=tuple(deep[keep].tolist()),
        left_out=len(start) - len(keep),
    )
