"""Find extra work of stragglers: operators that take longer than on peers, and pauses between extra calls."""

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

#: Number of operators or pauses in the evidence.
_MOST_NAMES = 5


class MoreOperators(msgspec.Struct, frozen=True, kw_only=True):
    """Operators that take longer on stragglers than on other ranks, as means over steps and ranks.

    Attributes:
        own_ms: excess self time by operator, largest first, only the first few.
        calls: excess calls per step, by the same operators.
        own_work: whether most of the excess is in operators that stragglers call more often, which is extra work.
    """

    own_ms: dict[str, float]
    calls: dict[str, float]
    own_work: bool

    def words(self) -> str:
        """Return the first operator if it has most of the excess, else the first two, as a part of a title."""
        first, *others = self.own_ms
        alone = self.own_ms[first] > MOST * sum(self.own_ms.values())
        return f"in {first}" if alone or not others else f"in {first}, {others[0]}{' and others' if others[1:] else ''}"


def more_operators(case: Case, late: tuple[int, ...]) -> MoreOperators | None:
    """Return the operators in which these ranks spend longer; None without any, or without other ranks."""
    measured = [(track.rank in late, *_time_and_calls(case, track)) for track in case.tracks]
    if len({is_late for is_late, *_ in measured}) < 2:
        return None
    more_ms = _excess([(is_late, ms) for is_late, ms, _ in measured])
    more_calls = _excess([(is_late, calls) for is_late, _, calls in measured])
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


def _excess(measured: list[tuple[bool, dict[str, float]]]) -> dict[str, float]:
    """Return the excess of the late ranks' mean over the others' mean, by operator of the late ranks."""
    ranks = [amounts for is_late, amounts in measured if is_late]
    peers = [amounts for is_late, amounts in measured if not is_late]
    return {
        name: sum(rank[name] for rank in ranks) / len(ranks) - sum(peer[name] for peer in peers) / len(peers)
        for name in {name: None for rank in ranks for name in rank}
    }


class OwnPauses(msgspec.Struct, frozen=True, kw_only=True):
    """Pauses of stragglers between two calls that other ranks seldom make in succession.

    A thread that has lost its core pauses between calls that its peers make too. A thread that saves or logs pauses
    between extra calls.

    Attributes:
        ms: mean pause per step and straggler by the calls before and after it, longest first.
    """

    ms: dict[str, float]

    @property
    def total_ms(self) -> float:
        """Return the sum of all pauses."""
        return sum(self.ms.values())

    def words(self) -> str:
        """Return the calls around the longest pause if it has most of the time, else ""."""
        first = next(iter(self.ms), "")
        return first if first and self.ms[first] > MOST * self.total_ms else ""

    def first(self) -> dict[str, float]:
        """Return the few longest pauses."""
        return dict(list(self.ms.items())[:_MOST_NAMES])


def own_pauses(case: Case, late: tuple[int, ...]) -> OwnPauses:
    """Return the pauses of these ranks between extra calls; none without other ranks."""
    ranks = [_between_calls(case, track) for track in case.tracks if track.rank in late]
    peers = [_between_calls(case, track) for track in case.tracks if track.rank not in late]
    ms: dict[str, float] = defaultdict(float)
    for rank in ranks if peers else ():
        for pair, (times, paused_ms) in rank.items():
            usual = sum(peer.get(pair, (0.0, 0.0))[0] for peer in peers) / len(peers)
            if paused_ms and times >= OFTEN * usual:
                before, after = pair
                words = f"between calls of {before}" if before == after else f"after {before} and before {after}"
                ms[words] += paused_ms / len(ranks)
    return OwnPauses(ms=dict(sorted(ms.items(), key=lambda item: -item[1])))


def _between_calls(case: Case, track: DeviceTrack) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (number, ms of pauses) per analysed step, by the names of two successive calls.

    Only outermost calls of the training and launching threads count.
    """
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    rows = events.rows_of(EventKind.OPERATOR, EventKind.RUNTIME)
    start = events.start_ns[rows] + track.shift_ns
    rows = rows[any_of(events.thread[rows], *_threads(track)) & (start >= begin) & (start < end)]
    rows = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    until = np.maximum.accumulate(events.end_ns[rows])
    outermost = np.ones(len(rows), np.bool_)
    outermost[1:] = events.start_ns[rows[1:]] >= until[:-1]
    rows = rows[outermost]
    pause = events.start_ns[rows[1:]] - events.end_ns[rows[:-1]]
    pause = np.where(pause > PAUSE_NS, pause, 0)
    pairs = np.stack([events.name[rows[:-1]], events.name[rows[1:]]], axis=1)
    named, index_of_name, times = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    paused = np.bincount(index_of_name.reshape(-1), weights=pause, minlength=len(named))
    steps = len(track.window_steps)
    return {
        (events.names[before], events.names[after]): (count / steps, milliseconds(ns) / steps)
        for (before, after), count, ns in zip(named.tolist(), times.tolist(), paused.tolist(), strict=True)
    }


def _threads(track: DeviceTrack) -> set[int]:
    return {track.steps.thread, *distinct(track.ops.launch_thread).tolist()} - {UNKNOWN}


def _time_and_calls(case: Case, track: DeviceTrack) -> tuple[dict[str, float], dict[str, float]]:
    """Return (self time in ms, calls) per analysed step by operator, of the training and launching threads."""
    events, (begin, end) = case.timeline.traces[track.trace].events, analysed_span(track)
    own_ms: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for thread in _threads(track):
        rows = events.rows_of(EventKind.OPERATOR)
        rows = rows[events.thread[rows] == thread]
        own = own_lengths(events.start_ns[rows], events.end_ns[rows])
        start = events.start_ns[rows] + track.shift_ns
        inside = (start >= begin) & (start < end)
        names, index_of_name, count = np.unique(events.name[rows[inside]], return_inverse=True, return_counts=True)
        total = np.bincount(index_of_name, weights=own[inside], minlength=len(names))
        for index, ns, times in zip(names.tolist(), total.tolist(), count.tolist(), strict=True):
            own_ms[events.names[index]] += milliseconds(ns) / len(track.window_steps)
            calls[events.names[index]] += times / len(track.window_steps)
    return own_ms, calls
