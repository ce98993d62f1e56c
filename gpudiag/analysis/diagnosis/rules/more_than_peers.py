"""What a late rank does more of than its peers: operators that it spends longer in, pauses between calls of its own."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST, OFTEN
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.simulation.chains.host_time import analysed_span
from gpudiag.intervals import distinct, own_lengths
from gpudiag.model.event import EventKind, any_of
from gpudiag.model.timeline import PAUSE_NS, UNKNOWN, DeviceTrack
from gpudiag.units import milliseconds

#: How many operators are named.
_MOST_NAMES = 5


class MoreOperators(msgspec.Struct, frozen=True, kw_only=True):
    """What late ranks spend longer in than the others, in the means over steps and ranks.

    Attributes:
        own_ms: by how much longer, by operator, without those within it; the most first, only the first few.
        calls: how many calls more per step, by the same operators.
        own_work: most of it is in operators that they call more often than the others: they do something of their own.
    """

    own_ms: dict[str, float]
    calls: dict[str, float]
    own_work: bool

    def words(self) -> str:
        """In which operators: the first where it has most of it, else the first two."""
        first, *others = self.own_ms
        alone = self.own_ms[first] > MOST * sum(self.own_ms.values())
        return f"in {first}" if alone or not others else f"in {first}, {others[0]}{' and others' if others[1:] else ''}"


def more_operators(case: Case, late: tuple[int, ...]) -> MoreOperators | None:
    """The operators in which these ranks spend longer; None where no other is there to compare with, or none does."""
    spent: dict[bool, list[tuple[dict[str, float], dict[str, float]]]] = {True: [], False: []}
    for track in case.tracks:
        spent[track.rank in late].append(_of_track(case, track))
    if not all(spent.values()):
        return None
    more_ms, more_calls = (
        {
            name: sum(one[of][name] for one in spent[True]) / len(spent[True])
            - sum(one[of][name] for one in spent[False]) / len(spent[False])
            for one in spent[True]
            for name in one[of]
        }
        for of in (0, 1)
    )
    longer = {name: ms for name, ms in sorted(more_ms.items(), key=lambda item: -item[1]) if ms > 0}
    called = sum(ms for name, ms in longer.items() if more_calls[name] >= MOST)
    own_work = called > MOST * sum(longer.values())
    first = [name for name in longer if not own_work or more_calls[name] >= MOST][:_MOST_NAMES]
    if not first:
        return None
    return MoreOperators(
        own_ms={name: longer[name] for name in first},
        calls={name: more_calls[name] for name in first},
        own_work=own_work,
    )


class OwnPauses(msgspec.Struct, frozen=True, kw_only=True):
    """Where late ranks record nothing between two calls that the others seldom make one after the other.

    A thread that has lost its core pauses between calls that its peers make too. One that saves or logs pauses between
    calls of its own, for the less each time the more of them it makes.

    Attributes:
        ms: by place, per step, in the mean over the late ranks; the most first.
    """

    ms: dict[str, float]

    @property
    def total_ms(self) -> float:
        """At all places."""
        return sum(self.ms.values())

    def words(self) -> str:
        """Where: the first place, where it has most of it."""
        first = next(iter(self.ms), "")
        return first if first and self.ms[first] > MOST * self.total_ms else ""

    def first(self) -> dict[str, float]:
        """The first few places."""
        return dict(list(self.ms.items())[:_MOST_NAMES])


def own_pauses(case: Case, late: tuple[int, ...]) -> OwnPauses:
    """The pauses of these ranks between calls of their own; none where no other rank is there to compare with."""
    found: dict[bool, list[dict[tuple[str, str], tuple[float, float]]]] = {True: [], False: []}
    for track in case.tracks:
        found[track.rank in late].append(_between_calls(case, track))
    ms: dict[str, float] = defaultdict(float)
    for one in found[True] if found[False] else ():
        for pair, (times, paused_ms) in one.items():
            usual = sum(peer.get(pair, (0.0, 0.0))[0] for peer in found[False]) / len(found[False])
            if paused_ms and times >= OFTEN * usual:
                before, after = pair
                words = f"between calls of {before}" if before == after else f"after {before} and before {after}"
                ms[words] += paused_ms / len(found[True])
    return OwnPauses(ms=dict(sorted(ms.items(), key=lambda item: -item[1])))


def _between_calls(case: Case, track: DeviceTrack) -> dict[tuple[str, str], tuple[float, float]]:
    """(how often, ms in pauses) per analysed step, by the names of two calls that follow one another.

    Calls are those that are within no other, of the threads that train.
    """
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    rows = events.rows_of(EventKind.OPERATOR, EventKind.RUNTIME)
    start = events.start_ns[rows] + track.shift_ns
    rows = rows[any_of(events.thread[rows], *_threads(track)) & (start >= begin) & (start < end)]
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    until = np.maximum.accumulate(events.end_ns[rows])
    outer = np.ones(len(rows), np.bool_)
    outer[1:] = events.start_ns[rows[1:]] >= until[:-1]
    rows = rows[outer]
    pause = events.start_ns[rows[1:]] - events.end_ns[rows[:-1]]
    pause = np.where(pause > PAUSE_NS, pause, 0)
    pairs = np.stack([events.name[rows[:-1]], events.name[rows[1:]]], axis=1)
    named, which, times = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    paused = np.bincount(which.reshape(-1), weights=pause, minlength=len(named))
    steps = len(track.window_steps)
    return {
        (events.names[before], events.names[after]): (count / steps, milliseconds(ns) / steps)
        for (before, after), count, ns in zip(named.tolist(), times.tolist(), paused.tolist(), strict=True)
    }


def _threads(track: DeviceTrack) -> set[int]:
    return {track.steps.thread, *distinct(track.ops.launch_thread).tolist()} - {UNKNOWN}


def _of_track(case: Case, track: DeviceTrack) -> tuple[dict[str, float], dict[str, float]]:
    """(own ms, calls) per analysed step, by operator, of the threads that train."""
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    own_ms: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for thread in _threads(track):
        rows = events.rows_of(EventKind.OPERATOR)
        rows = rows[events.thread[rows] == thread]
        own = own_lengths(events.start_ns[rows], events.end_ns[rows])
        start = events.start_ns[rows] + track.shift_ns
        inside = (start >= begin) & (start < end)
        names, which, count = np.unique(events.name[rows[inside]], return_inverse=True, return_counts=True)
        total = np.bincount(which, weights=own[inside], minlength=len(names))
        for index, ns, times in zip(names.tolist(), total.tolist(), count.tolist(), strict=True):
            own_ms[events.names[index]] += milliseconds(ns) / len(track.window_steps)
            calls[events.names[index]] += times / len(track.window_steps)
    return own_ms, calls
