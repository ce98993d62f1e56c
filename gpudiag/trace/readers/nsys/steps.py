"""Find marks of training steps among NVTX ranges: numbered ranges, or a range that repeats inside an outer one."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, outermost, union, within
from gpudiag.model.event import NO_CORRELATION, NO_NUMBER, EventKind, EventTable, Role, StepMarks
from gpudiag.trace.readers.kineto.roles import step_marks_of
from gpudiag.trace.readers.nsys.nvtx_names import numbered_step

SOURCE = "NVTX"
#: Fewest repetitions of a range that has no number.
_FEWEST = 3
#: Share of launches that step marks must contain.
_LAUNCHES = 0.5

Rows = NDArray[np.intp]


def with_step_marks(events: EventTable) -> tuple[EventTable, tuple[StepMarks, ...]]:
    """Return the table with the role `STEP_MARK` for marks of steps, and the marks, the preferred kind first.

    Marks of PyTorch's profiler and of gpudiag are preferred. The optimizer's updates are preferred over ranges without
    numbers. A range that repeats and is not inside another range is left to the analysis, as in all recordings.
    """
    known = step_marks_of(events)
    ranges = np.flatnonzero(
        (events.kind == EventKind.ANNOTATION) & (events.role == Role.OTHER) & (events.end_ns > events.start_ns)
    )
    launches = np.flatnonzero((events.kind == EventKind.RUNTIME) & (events.correlation != NO_CORRELATION))
    if known or not len(ranges):
        return events, known
    thread = _busiest_thread(events, launches if len(launches) else ranges)
    ranges = ranges[events.thread[ranges] == thread]
    launched = events.start_ns[launches[events.thread[launches] == thread]]
    rows, numbers = _numbered(events, ranges, launched)
    if not len(rows) and np.count_nonzero(events.role == Role.OPTIMIZER) < _FEWEST:
        rows = _nested(events, ranges, launched)
        numbers = np.full(len(rows), NO_NUMBER, np.int64)
    if not len(rows):
        return events, ()
    role = events.role.copy()
    role[rows] = Role.STEP_MARK
    return msgspec.structs.replace(events, role=role), (StepMarks(source=SOURCE, row=rows, number=numbers),)


def _numbered(events: EventTable, ranges: Rows, launched: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64]]:
    """Return (rows, numbers) of the ranges that state the number of a step; of several series, the outermost one.

    Numbers of a series increase and its ranges do not overlap, unlike those of parts that begin anew in each step.
    """
    steps = {name: numbered_step(events.names[name]) for name in set(events.name[ranges].tolist())}
    numbers = {name: step[1] for name, step in steps.items() if step is not None}
    series: dict[str, list[int]] = defaultdict(list)
    for row in ranges.tolist():
        step = steps[int(events.name[row])]
        if step is not None:
            series[step[0]].append(row)
    best: tuple[int, Rows] = (0, np.empty(0, np.intp))
    for members in series.values():
        rows = np.array(members, np.intp)
        rows = rows[outermost(events.start_ns[rows], events.end_ns[rows])]
        increasing = (np.diff(np.array([numbers[name] for name in events.name[rows].tolist()], np.int64)) > 0).all()
        apart = (events.start_ns[rows[1:]] >= events.end_ns[rows[:-1]]).all()
        if len(rows) > 1 and apart and increasing and _contain(events, rows, launched):
            best = max(best, (_total(events, rows), rows), key=lambda pair: pair[0])
    rows = best[1]
    return rows, np.array([numbers[name] for name in events.name[rows].tolist()], np.int64)


def _nested(events: EventTable, ranges: Rows, launched: NDArray[np.int64]) -> Rows:
    """Return the outermost repeating range, if ranges that occur once (`train`, `epoch 0`) contain it; else nothing."""
    names, position, counts = np.unique(events.name[ranges], return_inverse=True, return_counts=True)
    once = ranges[(counts == 1)[position.reshape(-1)]]
    best: tuple[int, Rows] = (0, np.empty(0, np.intp))
    for index in np.flatnonzero(counts >= _FEWEST).tolist():
        rows = ranges[position.reshape(-1) == index]
        if _contain(events, rows, launched):
            best = max(best, (_total(events, rows), rows), key=lambda pair: pair[0])
    rows = best[1]
    if not len(rows) or not len(once) or len(names) < 2:
        return rows[:0]
    outer = union(Intervals(events.start_ns[once], events.end_ns[once]))
    return rows if within(outer, events.start_ns[rows]).all() else rows[:0]


def _contain(events: EventTable, rows: Rows, launched: NDArray[np.int64]) -> bool:
    """Return whether ranges contain most launches between the first range and the last one."""
    inside = launched[(launched >= events.start_ns[rows[0]]) & (launched < events.end_ns[rows[-1]])]
    if not len(launched):
        return True
    held = within(union(Intervals(events.start_ns[rows], events.end_ns[rows])), inside)
    return bool(np.count_nonzero(held) > _LAUNCHES * len(inside) and len(inside) > _LAUNCHES * len(launched))


def _total(events: EventTable, rows: Rows) -> int:
    return int((events.end_ns[rows] - events.start_ns[rows]).sum())


def _busiest_thread(events: EventTable, rows: Rows) -> int:
    threads, counts = np.unique(events.thread[rows], return_counts=True)
    return int(threads[np.argmax(counts)])
