"""Select a typical step and steps of other lengths, and extract them for drawing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct, intersect, median, subtract
from gpudiag.model.analysis import BUCKETS
from gpudiag.model.event import EventKind
from gpudiag.model.step_view import DEVICE_COLOURS, UNMARKED_INPUT, RankView, StepTrack, StepView, WaitView
from gpudiag.model.timeline import UNKNOWN, Attribution, DeviceTrack, Timeline, TrackAttribution

if TYPE_CHECKING:
    from gpudiag.analysis.lines.spans import LineSpans

Columns = NDArray[np.int64]
_AttributedTrack = tuple[DeviceTrack, TrackAttribution]

#: Maximum number of spans per row. If there are more, the shortest are omitted, because they would be invisible.
_MOST_SPANS = 6000
#: Maximum nesting depth of the host's rows, and of the rows of source lines.
_MOST_DEPTH, _MOST_LINE_DEPTH = 4, 6
#: Maximum number of device tracks, which limits the length of the page.
_MOST_RANKS = 16
#: Maximum number of steps to show in addition to the typical step, from the shortest to the longest.
_MOST_OTHERS = 4
#: A step is typical if its length is within this share of the median.
_TYPICAL = 0.02
#: Minimum length of a drawn wait, as a share of the drawn span, and maximum number of drawn waits.
_SEEN_WAIT = 0.005
_MOST_WAITS = 96
_LONGEST_NAME = 160
#: Kind of drawn host event → number of its colour.
_HOST_KINDS = {EventKind.OPERATOR: 0, EventKind.ANNOTATION: 1, EventKind.RUNTIME: 2}


class _NameTable:
    """Numbered names, and the source lines of each process.

    Attributes:
        known: name → its number.
        lines: spans of source lines, by index of the trace.
    """

    def __init__(self, lines: Mapping[int, LineSpans] | None = None) -> None:
        self.known: dict[str, int] = {}
        self.lines = lines or {}

    def index(self, name: str) -> int:
        return self.known.setdefault(name[:_LONGEST_NAME], len(self.known))


def view_of_step(
    timeline: Timeline,
    attribution: Attribution,
    lines: Mapping[int, LineSpans] | None = None,
    important: Collection[int] = (),
) -> StepView | None:
    """Return a step of about median length on the first track, and other steps; None if no track has a window.

    The last typical step is used, so that tracks that begin late have activity before this step.

    Args:
        timeline: the job's device tracks.
        attribution: buckets of each track's steps.
        lines: spans of the user's source lines, by index of the trace.
        important: ranks to show if there are too many to show all.
    """
    attributed_tracks = [
        (track, attributed)
        for track, attributed in zip(timeline.tracks, attribution.tracks, strict=True)
        if len(track.bounds) > 1
    ]
    if not attributed_tracks:
        return None
    lengths = np.diff(attributed_tracks[0][0].bounds)
    away = np.abs(lengths - median(lengths))
    typical = int(np.flatnonzero(away <= away.min() + _TYPICAL * median(lengths))[-1])
    by_length = [window for window in np.argsort(lengths, kind="stable").tolist() if window != typical]
    chosen = distinct(np.linspace(0, len(by_length) - 1, min(len(by_length), _MOST_OTHERS)).round().astype(int))
    names = _NameTable(lines or {})
    shown = _shown(attributed_tracks, important)
    left_out = len(attributed_tracks) - len(shown)

    def view(window: int) -> StepView:
        number = int(attributed_tracks[0][0].window_steps[window])
        return msgspec.structs.replace(_view(timeline, shown, number, window, names), ranks_left_out=left_out)

    first = view(typical)
    others = tuple(view(window) for window in sorted(by_length[index] for index in chosen))
    return msgspec.structs.replace(first, names=tuple(names.known), others=others)


def _shown(tracks: list[_AttributedTrack], important: Collection[int]) -> list[_AttributedTrack]:
    """Return the tracks that fit on the page, in order: those of important ranks, and the first of the others."""
    by_importance = sorted(range(len(tracks)), key=lambda index: tracks[index][0].rank not in important)
    return [tracks[index] for index in sorted(by_importance[:_MOST_RANKS])]


def _view(
    timeline: Timeline,
    shown: list[_AttributedTrack],
    number: int,
    first_window: int,
    names: _NameTable,
) -> StepView:
    """Return step `number` on the shown tracks, and add to `names`. `first_window` is its window on the first track."""
    windows = [(track, attributed, _window(track, number, first_window)) for track, attributed in shown]
    begin = min(int(track.bounds[window]) for track, _, window in windows)
    end = max(int(track.bounds[window + 1]) for track, _, window in windows)
    ranks = tuple(
        RankView(
            rank=track.rank,
            device=track.label,
            begin=int(track.bounds[window]) - begin,
            end=int(track.bounds[window + 1]) - begin,
            tracks=tuple(_tracks(timeline, track, attributed, (begin, end), names)),
        )
        for track, attributed, window in windows
    )
    waits = [wait for track, _ in shown for wait in _waits(timeline, track, begin, end)]
    return StepView(
        step=number,
        length=end - begin,
        names=(),
        ranks=ranks,
        waits=tuple(sorted(waits, key=lambda wait: -wait.length)[:_MOST_WAITS]),
    )


def _waits(timeline: Timeline, track: DeviceTrack, begin: int, end: int) -> list[WaitView]:
    """Return the waits from the track's arrivals at collectives to the last arrivals, if all arrivals are known.

    Waits are cut to the drawn span from `begin` to `end` (ns on the common clock); too short waits are left out.
    """
    table = track.collectives
    start, until = np.maximum(table.start, begin), np.minimum(table.last_arrival, end)
    seen = (until - start >= _SEEN_WAIT * (end - begin)) & (table.last_rank != UNKNOWN)
    (whole,) = timeline.whole_collectives([track])
    rows = np.flatnonzero(seen & whole)
    return [
        WaitView(
            rank=track.rank,
            on_rank=int(table.last_rank[row]),
            start=int(start[row]) - begin,
            length=int(until[row] - start[row]),
        )
        for row in rows.tolist()
        if table.last_rank[row] != track.rank
    ]


def _window(track: DeviceTrack, number: int, otherwise: int) -> int:
    """Return the index of the window with this number; if none has it, `otherwise` but at most the last index."""
    same = np.flatnonzero(track.window_steps == number)
    return int(same[0]) if len(same) else min(otherwise, len(track.bounds) - 2)


def _tracks(
    timeline: Timeline, track: DeviceTrack, attributed: TrackAttribution, span: tuple[int, int], names: _NameTable
) -> list[StepTrack]:
    """Return one rank's rows in `span` (begin, end; ns on the common clock): buckets, streams, host, source lines."""
    tracks = [_bucket_track(attributed, span, names)]
    events = timeline.traces[track.trace].events
    ops = track.ops
    inside = (ops.end > span[0]) & (ops.start < span[1])
    for stream in distinct(ops.stream[inside]).tolist() if not track.is_cpu else []:
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
    tracks.append(_host_track(timeline, track, span, names))
    lines = names.lines.get(track.trace)
    if lines is not None:
        tracks.append(_line_track(lines, span, names))
    return tracks


def _contents(op_class: Columns, length: Columns) -> str:
    """Return the name of the class of work that takes most of a stream's time."""
    return DEVICE_COLOURS[int(np.bincount(op_class, length, len(DEVICE_COLOURS)).argmax())]


def _bucket_track(attributed: TrackAttribution, span: tuple[int, int], names: _NameTable) -> StepTrack:
    """Return the row of bucket intervals in `span`; idle time that may be unmarked input has a separate name."""
    within = Intervals(np.array([span[0]]), np.array([span[1]]))
    named = [(bucket, colour, attributed.parts[bucket]) for colour, bucket in enumerate(BUCKETS)]
    _, idle_colour, idle = named.pop()  # `idle` is the last bucket
    named += [
        ("idle", idle_colour, subtract(idle, attributed.unmarked_input)),
        (UNMARKED_INPUT, idle_colour, intersect(idle, attributed.unmarked_input)),
    ]
    cut = [(names.index(name), colour, intersect(intervals, within)) for name, colour, intervals in named]
    start = np.concatenate([intervals.start for _, _, intervals in cut])
    end = np.concatenate([intervals.end for _, _, intervals in cut])
    name = np.repeat([name for name, _, _ in cut], [len(intervals) for _, _, intervals in cut])
    kind = np.repeat([colour for _, colour, _ in cut], [len(intervals) for _, _, intervals in cut])
    order = np.argsort(start, kind="stable")
    return _track("buckets", "where time goes", (start[order], end[order], name[order], kind[order]), span[0])


def _host_track(timeline: Timeline, track: DeviceTrack, span: tuple[int, int], names: _NameTable) -> StepTrack:
    """Return the row of the training thread's nested events in `span`, at most `_MOST_DEPTH` deep."""
    events = timeline.traces[track.trace].events
    rows = events.rows_of(*_HOST_KINDS)
    start, end = events.start_ns[rows] + track.shift_ns, events.end_ns[rows] + track.shift_ns
    inside = (events.thread[rows] == track.steps.thread) & (end > span[0]) & (start < span[1]) & (end > start)
    rows, start, end = rows[inside], start[inside], end[inside]
    depth = _depths(start, end)
    shallow = depth < _MOST_DEPTH
    rows, start, end, depth = rows[shallow], start[shallow], end[shallow], depth[shallow]
    name = np.array([names.index(events.name_of(int(row))) for row in rows], np.int64)
    colour = np.array([_HOST_KINDS[EventKind(int(kind))] for kind in events.kind[rows]], np.int64)
    return _track("host", "host", (start, end, name, colour), span[0], depth)


def _line_track(lines: LineSpans, span: tuple[int, int], names: _NameTable) -> StepTrack:
    """Return the row of the user's source lines on the training thread."""
    rows = np.flatnonzero((lines.end > span[0]) & (lines.start < span[1]) & (lines.depth < _MOST_LINE_DEPTH))
    known = {label: names.index(lines.labels[label]) for label in distinct(lines.label[rows]).tolist()}
    name = np.array([known[label] for label in lines.label[rows].tolist()], np.int64)
    columns = (lines.start[rows], lines.end[rows], name, np.zeros(len(rows), np.int64))
    return _track("lines", "source lines", columns, span[0], lines.depth[rows])


def _depths(start: Columns, end: Columns) -> Columns:
    """Count the spans that enclose each span; spans are sorted by start (ties: longer first)."""
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
    """Return a row of spans; starts count from `zero`.

    `columns` has the spans' start, end, index of the name (`_NameTable`), and colour. `depth` is 0 if it is not given.
    """
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
