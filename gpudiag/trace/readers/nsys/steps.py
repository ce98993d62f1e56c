"""Find marks of training steps among NVTX ranges: numbered ranges, or a range that repeats inside an outer range."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct, outermost, union, within
from gpudiag.model.event import NO_CORRELATION, NO_NUMBER, EventKind, EventTable, Role, StepMarks
from gpudiag.trace.readers.kineto.roles import step_marks_of
from gpudiag.trace.readers.nsys.nvtx_names import numbered_step

SOURCE = "NVTX"
#: Minimum number of repetitions of a range that has no number, and of the optimizer's updates.
_FEWEST = 3
#: Minimum share of launches that numbered ranges and other ranges must contain.
_NUMBERED, _REPEATED = 0.5, 0.8

Rows = NDArray[np.intp]


def with_step_marks(events: EventTable) -> tuple[EventTable, tuple[StepMarks, ...]]:
    """Return the table with the role `STEP_MARK` for marks of steps, and the marks, the preferred kind first.

    Marks of PyTorch's profiler and of gpudiag are preferred. The optimizer's updates are preferred over ranges without
    numbers. Updates and repeating ranges that the analysis itself finds are not marked here.
    """
    known = step_marks_of(events)
    ranges = np.flatnonzero(
        (events.kind == EventKind.ANNOTATION) & (events.role == Role.OTHER) & (events.end_ns > events.start_ns)
    )
    launches = np.flatnonzero((events.kind == EventKind.RUNTIME) & (events.correlation != NO_CORRELATION))
    launching, counts = np.unique(events.thread[launches], return_counts=True)
    if len(launching):  # PyTorch's backward pass launches in a separate thread, which has no ranges
        ranges = ranges[np.isin(events.thread[ranges], launching)]
    if known or not len(ranges):
        return events, known
    launched = events.start_ns[launches]
    rows, numbers = _numbered(events, ranges, launched)
    if not len(rows) and np.count_nonzero(events.role == Role.OPTIMIZER) < _FEWEST:
        busiest = int(launching[np.argmax(counts)]) if len(launching) else None
        rows = _repeating(events, ranges, launched, busiest)
        numbers = np.full(len(rows), NO_NUMBER, np.int64)
    if not len(rows):
        return events, ()
    role = events.role.copy()
    role[rows] = Role.STEP_MARK
    return msgspec.structs.replace(events, role=role), (StepMarks(source=SOURCE, row=rows, number=numbers),)


def _numbered(events: EventTable, ranges: Rows, launched: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
    """Return (rows, numbers) of the ranges that state the number of a step; of several series, the longest in total.

    A series has the outermost ranges of one thread with the same name before the number. Numbers of a series increase,
    unlike numbers of a step's parts, which begin anew in each step. `launched` has the times of all launches in ns.
    """
    steps = {name: numbered_step(events.names[name]) for name in set(events.name[ranges].tolist())}
    numbers = {name: step[1] for name, step in steps.items() if step is not None}
    series: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, thread in zip(ranges.tolist(), events.thread[ranges].tolist(), strict=True):
        step = steps[int(events.name[row])]
        if step is not None:
            series[thread, step[0]].append(row)
    best: tuple[int, Rows] = (0, np.empty(0, np.intp))
    for members in series.values():
        rows = np.array(members, np.intp)
        rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
        increasing = (np.diff(np.array([numbers[name] for name in events.name[rows].tolist()], np.int64)) > 0).all()
        if len(rows) > 1 and increasing and _contain(events, rows, launched, _NUMBERED):
            best = max(best, (_total(events, rows), rows), key=lambda pair: pair[0])
    rows = best[1]
    return rows, np.array([numbers[name] for name in events.name[rows].tolist()], np.int64)


def _repeating(events: EventTable, ranges: Rows, launched: NDArray[np.int64], busiest: int | None) -> Rows:
    """Return the rows of the longest repeating range that the analysis would not find; empty if there is none.

    The analysis considers the outermost ranges of the thread with most launches (`busiest`; None without launches). It
    misses ranges within a range that occurs once (`train`, `epoch 0`), and all ranges of the main thread if backward's
    thread launches more.
    """
    best: tuple[int, Rows] = (0, np.empty(0, np.intp))
    for thread in distinct(events.thread[ranges]).tolist():
        on_thread = ranges[events.thread[ranges] == thread]
        _, position, counts = np.unique(events.name[on_thread], return_inverse=True, return_counts=True)
        once = on_thread[(counts == 1)[position.reshape(-1)]]
        outer = union(Intervals(events.start_ns[once], events.end_ns[once]))
        for index in np.flatnonzero(counts >= _FEWEST).tolist():
            rows = on_thread[position.reshape(-1) == index]
            hidden = thread != busiest or bool(within(outer, events.start_ns[rows]).all())
            if hidden and _contain(events, rows, launched, _REPEATED):
                best = max(best, (_total(events, rows), rows), key=lambda pair: pair[0])
    return best[1]


def _contain(events: EventTable, rows: Rows, launched: NDArray[np.int64], share: float) -> bool:
    """Return whether most launches lie between first and last range, and more than `share` of these within ranges.

    `launched` is as in `_numbered`. Without any launch (a process that only marks ranges), return True.
    """
    inside = launched[(launched >= events.start_ns[rows[0]]) & (launched < events.end_ns[rows].max())]
    if not len(launched):
        return True
    held = within(union(Intervals(events.start_ns[rows], events.end_ns[rows])), inside)
    return bool(np.count_nonzero(held) > share * len(inside) and 2 * len(inside) > len(launched))


def _total(events: EventTable, rows: Rows) -> int:
    return int((events.end_ns[rows] - events.start_ns[rows]).sum())
