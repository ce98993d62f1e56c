"""A light recording with the operators of a full one of the same job, put where they ran in the light one.

A recording with operators makes the host slower, by up to 60 %; one without says nothing of what it did between two
calls of CUDA. The calls of a step are the same in both: they tell what time in the one is what time in the other.

    full     step ├ aten::conv ┤launch├ aten::bn ┤──┤launch├ … ┤   operators between two launches lie
    light    step ├─────┤launch├────────┤launch├ … ┤               in the same share of the time between them

Kernels, copies, calls, marks and all their times stay those of the light recording.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import distinct
from gpudiag.model.event import CollectiveCall, EventKind, EventTable, StepMarks, Trace

Times = NDArray[np.int64]

_PUT_IN = (EventKind.OPERATOR, EventKind.PYTHON)


def with_operators(light: Trace, full: Trace) -> Trace | None:
    """The light recording with the full one's operators; None where the two have no steps of the same calls.

    Args:
        light: one process's recording without operators; it has step marks.
        full: the same process's with them.
    """
    if not light.step_marks or not full.step_marks:
        return None
    steps = list(zip(_steps(light), _steps(full), strict=False))
    rows, start, end = [], [], []
    matched = 0
    for here, there in steps:
        for thread in distinct(_calls(full.events, there, None)[1]).tolist():
            calls_here, _ = _calls(light.events, here, thread)
            calls_there, _ = _calls(full.events, there, thread)
            alike = np.array_equal(_names(light.events, calls_here), _names(full.events, calls_there))
            matched += alike
            if not alike:
                calls_here = calls_there = np.empty(0, np.intp)
            known = _edges(full.events, calls_there, there), _edges(light.events, calls_here, here)
            mine = _operators(full.events, there, thread)
            rows.append(mine)
            start.append(np.interp(full.events.start_ns[mine], *known).astype(np.int64))
            end.append(np.interp(full.events.end_ns[mine], *known).astype(np.int64))
    if not matched:
        return None
    return _joined(light, full, np.concatenate(rows), np.concatenate(start), np.concatenate(end))


def _steps(trace: Trace) -> list[tuple[int, int]]:
    """(begin, end) of each marked step; the last ends with its mark."""
    marks = trace.step_marks[0].row
    begun = trace.events.start_ns[marks].tolist()
    return [*pairwise(begun), (begun[-1], int(trace.events.end_ns[marks[-1]]))]


def _calls(events: EventTable, step: tuple[int, int], thread: int | None) -> tuple[NDArray[np.intp], Times]:
    """Rows of a step's calls that lie in no other, and their threads."""
    rows = events.rows_of(EventKind.RUNTIME)
    a, b = np.searchsorted(events.start_ns[rows], step)
    rows = rows[a:b]
    if thread is not None:
        rows = rows[events.thread[rows] == thread]
        reach = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(events.end_ns[rows])[:-1]])
        rows = rows[events.start_ns[rows] >= reach]
    return rows, events.thread[rows]


def _names(events: EventTable, rows: NDArray[np.intp]) -> list[str]:
    return [events.names[index] for index in events.name[rows].tolist()]


def _edges(events: EventTable, calls: NDArray[np.intp], step: tuple[int, int]) -> NDArray[np.float64]:
    """float64[2k + 2]: when the step and each of its calls begin and end, in order."""
    edges = np.empty(2 * len(calls) + 2)
    edges[0], edges[-1] = step
    edges[1:-1:2], edges[2:-1:2] = events.start_ns[calls], events.end_ns[calls]
    return np.maximum.accumulate(edges)


def _operators(events: EventTable, step: tuple[int, int], thread: int) -> NDArray[np.intp]:
    rows = events.rows_of(*_PUT_IN)
    a, b = np.searchsorted(events.start_ns[rows], step)
    mine: NDArray[np.intp] = rows[a:b][events.thread[rows[a:b]] == thread]
    return mine


def _joined(light: Trace, full: Trace, rows: NDArray[np.intp], start: Times, end: Times) -> Trace:
    names = {name: index for index, name in enumerate(light.events.names)}
    renamed = np.array([names.setdefault(name, len(names)) for name in full.events.names], np.int32)
    added = {name: column[rows] for name, column in full.events.columns().items()}
    added |= {"start_ns": start, "end_ns": np.maximum(end, start), "name": renamed[added["name"]]}
    columns = {name: np.concatenate([column, added[name]]) for name, column in light.events.columns().items()}
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    told = _told(light, full)
    return msgspec.structs.replace(
        light,
        events=EventTable(**{name: column[order] for name, column in columns.items()}, names=tuple(names)),
        collectives=tuple(msgspec.structs.replace(call, row=int(place[call.row])) for call in told),
        step_marks=tuple(
            StepMarks(source=marks.source, row=np.sort(place[marks.row]), number=marks.number)
            for marks in light.step_marks
        ),
        event_waits=light.event_waits.moved(place),
        operators_put_in=True,
    )


def _told(light: Trace, full: Trace) -> list[CollectiveCall]:
    """The light recording's collectives with what only the full one says, groups and sizes, step by step."""
    calls = {call.row: call for call in light.collectives}
    for mine, other in zip(_by_step(light), _by_step(full), strict=False):
        if [call.operation for call in mine] != [call.operation for call in other]:
            continue
        for call, known in zip(mine, other, strict=True):
            calls[call.row] = msgspec.structs.replace(
                call,
                group=call.group or known.group,
                group_ranks=call.group_ranks or known.group_ranks,
                size_bytes=known.size_bytes if call.size_bytes is None else call.size_bytes,
            )
    return list(calls.values())


def _by_step(trace: Trace) -> list[list[CollectiveCall]]:
    """The collectives on devices by the step that launched them, in the order of their launches."""
    events = trace.events
    calls = events.rows_of(EventKind.RUNTIME)
    launched = dict(zip(events.correlation[calls].tolist(), events.start_ns[calls].tolist(), strict=True))
    found: list[list[CollectiveCall]] = []
    kernels = [call for call in trace.collectives if events.kind[call.row] == EventKind.KERNEL]
    timed = sorted((launched.get(int(events.correlation[call.row]), -1), call.row, call) for call in kernels)
    for begin, end in _steps(trace):
        found.append([call for time, _, call in timed if begin <= time < end])
    return found
