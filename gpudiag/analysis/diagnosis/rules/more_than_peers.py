"""Which operators a late rank spends longer in than its peers, and whether they do not call them at all."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.replay.chains.host_time import body_span
from gpudiag.intervals import distinct, own_lengths
from gpudiag.model.event import EventKind
from gpudiag.model.timeline import UNKNOWN, Lane
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
    for lane in case.lanes:
        spent[lane.rank in late].append(_of_lane(case, lane))
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


def _of_lane(case: Case, lane: Lane) -> tuple[dict[str, float], dict[str, float]]:
    """(own ms, calls) per analysed step, by operator, of the threads that train."""
    events, (begin, end) = case.timeline.traces[lane.trace].events, body_span(lane)
    threads = {lane.steps.thread, *distinct(lane.ops.launch_thread).tolist()} - {UNKNOWN}
    own_ms: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for thread in threads:
        rows = events.rows_of(EventKind.OPERATOR)
        rows = rows[events.thread[rows] == thread]
        own = own_lengths(events.start_ns[rows], events.end_ns[rows])
        start = events.start_ns[rows] + lane.shift_ns
        inside = (start >= begin) & (start < end)
        names, which, count = np.unique(events.name[rows[inside]], return_inverse=True, return_counts=True)
        total = np.bincount(which, weights=own[inside], minlength=len(names))
        for index, ns, times in zip(names.tolist(), total.tolist(), count.tolist(), strict=True):
            own_ms[events.names[index]] += milliseconds(ns) / max(len(lane.window_steps), 1)
            calls[events.names[index]] += times / max(len(lane.window_steps), 1)
    return own_ms, calls
