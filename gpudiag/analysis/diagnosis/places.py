"""Locate untraced host time: the operators before and after it, and the user's functions around it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import FEW_SLOW_CALLS, MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.host_time import (
    analysed_span,
    before_first_ops,
    garbage_collection,
    slow_calls,
    untraced_time,
)
from gpudiag.intervals import Intervals, intersect, length
from gpudiag.model.event import EventKind, EventTable, Role
from gpudiag.model.timeline import PAUSE_NS, DeviceTrack
from gpudiag.units import milliseconds

#: Deepest nesting of the user's functions around an event.
_DEEPEST_NESTING = 64


def user_frames(events: EventTable, rows: Iterable[int]) -> Counter[str]:
    """Count host events (`rows` of one process) by the innermost user's function in which each event lies."""
    counted: Counter[str] = Counter()
    frames = np.flatnonzero(events.role == Role.USER_FUNCTION)
    if len(frames) == 0:
        return counted
    by_thread: dict[int, NDArray[np.intp]] = {}
    for row in rows:
        thread = int(events.thread[row])
        if thread not in by_thread:
            by_thread[thread] = frames[events.thread[frames] == thread]
        on_thread = by_thread[thread]
        upto = int(np.searchsorted(events.start_ns[on_thread], events.start_ns[row], side="right"))
        around = on_thread[max(0, upto - _DEEPEST_NESTING) : upto]
        around = around[events.end_ns[around] >= events.end_ns[row]]
        if len(around):
            counted[events.name_of(int(around[-1]))] += 1
    return counted


def time_in(events: EventTable, thread: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return user's function → ns, within a span, in which it was the innermost function on a thread.

    Args:
        events: one process's events.
        thread: the thread.
        begin_ns, end_ns: the span, on the events' clock.
    """
    frames = np.flatnonzero((events.role == Role.USER_FUNCTION) & (events.thread == thread))
    frames = frames[(events.end_ns[frames] > begin_ns) & (events.start_ns[frames] < end_ns)]
    total: dict[str, int] = defaultdict(int)
    open_frames: list[tuple[int, str]] = []  # (end, name) of the frames around the current frame, outermost first
    starts = np.maximum(events.start_ns[frames], begin_ns).tolist()
    ends = np.minimum(events.end_ns[frames], end_ns).tolist()
    for row, start, end in zip(frames.tolist(), starts, ends, strict=True):
        while open_frames and open_frames[-1][0] <= start:
            open_frames.pop()
        name = events.name_of(row)
        # In a damaged record a frame may end after its enclosing frame; cut the inner frame.
        stop = min(end, open_frames[-1][0]) if open_frames else end
        total[name] += stop - start
        if open_frames:
            total[open_frames[-1][1]] -= stop - start
        open_frames.append((stop, name))
    return dict(total)


def innermost(events: EventTable, rows: NDArray[np.intp], begin_ns: int, end_ns: int) -> str:
    """Return the name of the shortest event of `rows` that covers most of a span on the trace's clock, or ""."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    overlap = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
    covering = np.flatnonzero(overlap > MOST * (end_ns - begin_ns))
    if len(covering) == 0:
        return ""
    return events.name_of(int(rows[covering[np.argmin((end - start)[covering])]]))


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A location of untraced host time in the step.

    Attributes:
        words: "after … and before …", with the user's function around it if stacks were recorded.
        ms_per_step: mean untraced time at the location.
        collecting: whether most of that time is garbage collection.
    """

    words: str
    ms_per_step: float
    collecting: bool = False


def stalls(case: Case, ranks: Container[int], *, common: bool = False) -> list[Place]:
    """Return the locations of untraced host time on these ranks, longest first.

    Time before a step's first op and time in communication do not count. The time of a location is the maximum over
    ranks, or with `common` the lower median, which ignores a stall of a single rank.
    """
    by_process = [_places(case, track, untraced_time) for track in _processes(case, ranks)]
    places = []
    for words in {words: None for process in by_process for words in process}:
        lengths = sorted((at[words] for at in by_process if words in at), key=lambda place: place.ms_per_step)
        missing = len(by_process) - len(lengths)
        # The index of the lower median or maximum; a process without the location counts as 0, before all others.
        index = (len(by_process) - 1) // 2 - missing if common else len(lengths) - 1
        if index >= 0:
            places.append(lengths[index])
    return sorted(places, key=lambda place: -place.ms_per_step)


def main_place(places: Sequence[Place], gain_ms: float) -> Place | None:
    """Return the longest place if it has most of the time of all places and most of the savings, else None.

    `places` begins with the longest. `gain_ms` is the savings of removing all stalls, in ms per step.
    """
    most = MOST * max(sum(place.ms_per_step for place in places), gain_ms)
    return places[0] if places and places[0].ms_per_step >= most else None


def before_first_operator(case: Case, ranks: Container[int]) -> str:
    """Describe the location of most untraced time before the first op of these ranks' steps; "" without such time."""
    places = [place for track in _processes(case, ranks) for place in _places(case, track, before_first_ops).values()]
    return max(places, key=lambda place: place.ms_per_step).words if places else ""


def _places(case: Case, track: DeviceTrack, find: Callable[[DeviceTrack, EventTable], Intervals]) -> dict[str, Place]:
    """Group the untraced stretches that `find` returns, in one process's analysed steps, by their description."""
    events = case.timeline.traces[track.trace].events
    collecting = garbage_collection(track, events)
    total: dict[str, int] = defaultdict(int)
    collected: dict[str, int] = defaultdict(int)
    body = Intervals(*(np.array([edge], np.int64) for edge in analysed_span(track)))
    for start, end in intersect(find(track, events), body).pairs():
        words = _describe(track, events, start, end)
        total[words] += end - start
        collected[words] += length(intersect(Intervals(np.array([start]), np.array([end])), collecting))
    steps = len(track.window_steps)
    return {
        words: Place(words=words, ms_per_step=milliseconds(ns / steps), collecting=2 * collected[words] > ns)
        for words, ns in total.items()
    }


def slow_operators(case: Case, ranks: Container[int]) -> dict[str, tuple[float, float]]:
    """Return operator → (self time in ms, number) of its slow calls per step and process, slowest operator first."""
    own_ns: dict[str, int] = defaultdict(int)
    calls: dict[str, set[int]] = defaultdict(set)
    steps = 0
    for index, track in enumerate(_processes(case, ranks)):
        events = case.timeline.traces[track.trace].events
        slow = slow_calls(track, events, list(track.threads), *analysed_span(track))
        steps += len(track.window_steps)
        for (start, end), row in zip(slow.spans.pairs(), slow.row.tolist(), strict=True):
            name = events.name_of(row)
            own_ns[name] += end - start
            calls[name].add(row * len(case.timeline.traces) + index)  # one call may have several slow stretches
    slow_by_name = {name: (milliseconds(ns / steps), len(calls[name]) / steps) for name, ns in own_ns.items()}
    return dict(sorted(slow_by_name.items(), key=lambda item: -item[1][0]))


def few_slow_calls(case: Case, ranks: Container[int]) -> dict[str, tuple[float, float]]:
    """Return `slow_operators` if a few of them have most of the time, else an empty dict.

    Many names show that the thread sometimes loses its core, because a lost core slows any operator.
    """
    slow = slow_operators(case, ranks)
    first = list(slow.values())[:FEW_SLOW_CALLS]
    return slow if sum(ms for ms, _ in first) >= MOST * sum(ms for ms, _ in slow.values()) else {}


def _processes(case: Case, ranks: Container[int]) -> list[DeviceTrack]:
    """Return one device track for each process of these ranks that has analysed steps."""
    by_trace = {
        track.trace: track for track in reversed(case.tracks) if track.rank in ranks and len(track.window_steps)
    }
    return [by_trace[trace] for trace in sorted(by_trace)]


def _describe(track: DeviceTrack, events: EventTable, start: int, end: int) -> str:
    """Describe what the training thread did before and after a span on the common clock."""
    start, end = start - track.shift_ns, end - track.shift_ns
    rows = events.rows_of(EventKind.OPERATOR, EventKind.ANNOTATION)
    rows = rows[(events.thread[rows] == track.steps.thread) & (events.role[rows] != Role.STEP_MARK)]
    before = _outermost(events, rows[events.end_ns[rows] <= start], events.end_ns, latest=True)
    after = _outermost(events, rows[events.start_ns[rows] >= end], events.start_ns, latest=False)
    parts = [f"after {before}" if before else "", f"before {after}" if after else ""]
    on_thread = events.thread == track.steps.thread
    functions = np.flatnonzero(on_thread & (events.role == Role.USER_FUNCTION))
    ranges = np.flatnonzero(on_thread & (events.kind == EventKind.ANNOTATION) & (events.role == Role.OTHER))
    inside = innermost(events, functions, start, end) or innermost(events, ranges, start, end)
    where = " and ".join(part for part in parts if part) or "between its operators"
    return f"{where}, in {inside}" if inside else where


def _outermost(events: EventTable, rows: NDArray[np.intp], edge: NDArray[np.int64], *, latest: bool) -> str:
    """Return the name of the call with the latest or earliest `edge`, which is the start or end time of each event.

    If the edges of several calls are close (far less than a pause apart), the longest call is returned, because it
    encloses the other calls.
    """
    if len(rows) == 0:
        return ""
    nearest = edge[rows].max() if latest else edge[rows].min()
    close = rows[np.abs(edge[rows] - nearest) <= PAUSE_NS // 10]
    return events.name_of(int(close[np.argmax(events.end_ns[close] - events.start_ns[close])]))
