"""A light recording with the operators of a full one of the same job, put where they ran in the light one.

A recording with operators makes the host slower, by up to 60 %; one without says nothing of what it did between two
calls of CUDA. The calls that two steps of a kind have in common tell what time in the one is what time in the other.

    full     step ├ aten::conv ┤launch├ aten::bn ┤──┤launch├ … ┤   operators between two launches lie
    light    step ├─────┤launch├────────┤launch├ … ┤               in the same share of the time between them

Kernels, copies, calls, marks and all their times stay those of the light recording.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import HOST, CollectiveCall, EventKind, EventTable, ModuleWork, StepMarks, Trace
from gpudiag.trace.same_calls import (
    NONE,
    calls_of_steps,
    in_common,
    most_alike,
    same_calls,
    same_threads,
    step_threads,
)

Times = NDArray[np.int64]
Span = tuple[int, int, int]
"""When a step and its mark begin, when the mark ends, and when the next step begins, ns."""

SAME_STEPS = 0.85
"""With a smaller share of their calls in common the steps of two recordings are not the same. Measured (two H200,
PyTorch 2.11): the two of one job had 97 % or more in common, in 55 jobs; those of two models at most 37 %, and 75 %
where most calls of both launch the same tiny kernel."""
_PUT_IN = (EventKind.OPERATOR, EventKind.PYTHON, EventKind.MODULE)


def with_operators(light: Trace, full: Trace) -> Trace | None:
    """The light recording with the full one's operators; None where the two have no steps of the same calls.

    Args:
        light: one process's recording without operators; it has step marks.
        full: the same process's with them.
    """
    if not light.step_marks or not full.step_marks:
        return None
    numbers = {name: index for index, name in enumerate(dict.fromkeys((*light.events.names, *full.events.names)))}
    begun, others = _steps(light), _steps(full)
    here = calls_of_steps(light.events, [step[::2] for step in begun], numbers)
    there = calls_of_steps(full.events, [step[::2] for step in others], numbers)
    if called := same_threads(here, there):
        full = _with_threads(full, called)
        there = [{called.get(thread, thread): calls for thread, calls in step.items()} for step in there]
    like = most_alike(here, there)
    put_in: list[NDArray[np.int64]] = []
    common = of_all = 0
    for mine, step, index in zip(here, begun, like, strict=True):
        moved = step_threads(mine, there[index])
        called_there = {thread: thread for thread in there[index].keys() - moved.keys()}
        called_there |= {thread: other for other, thread in moved.items()}
        pairs = {
            thread: same_calls(mine.get(thread, NONE), there[index][other]) for thread, other in called_there.items()
        }
        counts = in_common(mine, there[index], pairs)
        common, of_all = common + counts[0], of_all + counts[1]
        for thread, (place, other) in pairs.items():
            known = (
                _edges(full.events, there[index][called_there[thread]].row[other], others[index]),
                _edges(light.events, mine.get(thread, NONE).row[place], step),
            )
            rows = _operators(full.events, others[index], called_there[thread])
            times = [np.interp(column[rows], *known) for column in (full.events.start_ns, full.events.end_ns)]
            put_in.append(np.array([rows, np.full(len(rows), thread), *times], np.int64))
    if not common or common < SAME_STEPS * of_all:
        return None
    return _joined(light, full, like, np.concatenate(put_in, axis=1))


def _with_threads(trace: Trace, called: dict[int, int]) -> Trace:
    """The recording with the host's threads called otherwise."""
    thread = trace.events.thread.copy()
    host = trace.events.device == HOST
    for number, other in called.items():
        thread[host & (trace.events.thread == number)] = other
    return msgspec.structs.replace(trace, events=msgspec.structs.replace(trace.events, thread=thread))


def _steps(trace: Trace) -> list[Span]:
    """Each marked step; the last ends with its mark."""
    marks = trace.step_marks[0].row
    begun, ended = trace.events.start_ns[marks].tolist(), trace.events.end_ns[marks].tolist()
    return list(zip(begun, ended, [*begun[1:], ended[-1]], strict=True))


def _edges(events: EventTable, calls: NDArray[np.intp], step: Span) -> NDArray[np.float64]:
    """float64[2k + 3]: when the step and each of its calls begin and end, in order; the mark ends after all calls."""
    edges = np.empty(2 * len(calls) + 3)
    edges[0], edges[-2], edges[-1] = step
    edges[1:-2:2], edges[2:-2:2] = events.start_ns[calls], events.end_ns[calls]
    return np.maximum.accumulate(edges)


def _operators(events: EventTable, step: Span, thread: int) -> NDArray[np.intp]:
    rows = events.rows_of(*_PUT_IN)
    a, b = np.searchsorted(events.start_ns[rows], step[::2])
    mine: NDArray[np.intp] = rows[a:b][events.thread[rows[a:b]] == thread]
    return mine


def _joined(light: Trace, full: Trace, like: list[int], put_in: NDArray[np.int64]) -> Trace:
    """The two as one.

    `put_in`, int64[4, n]: rows of the full recording, and of each the thread, the begin and the end in the light one.
    """
    rows, thread, start, end = put_in
    names = {name: index for index, name in enumerate(light.events.names)}
    renamed = np.array([names.setdefault(name, len(names)) for name in full.events.names], np.int32)
    added = {name: column[rows] for name, column in full.events.columns().items()}
    added |= {"thread": thread, "start_ns": start, "end_ns": np.maximum(end, start), "name": renamed[added["name"]]}
    columns = {name: np.concatenate([column, added[name]]) for name, column in light.events.columns().items()}
    order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    told = _told(light, full, like)
    return msgspec.structs.replace(
        light,
        events=EventTable(**{name: column[order] for name, column in columns.items()}, names=tuple(names)),
        collectives=tuple(msgspec.structs.replace(call, row=int(place[call.row])) for call in told),
        step_marks=tuple(
            StepMarks(source=marks.source, row=np.sort(place[marks.row]), number=marks.number)
            for marks in light.step_marks
        ),
        event_waits=light.event_waits.moved(place),
        modules=None if full.modules is None else _moved(full.modules, rows, place[len(light.events) :]),
        operators_put_in=True,
        workload=light.workload if light.workload == "training" else full.workload,
    )


def _moved(work: ModuleWork, rows: NDArray[np.int64], place: NDArray[np.intp]) -> ModuleWork:
    """Which module events worked for, where each of `rows` is in row `place` of another table, some more than once."""
    known = np.minimum(np.searchsorted(work.row, rows), max(len(work.row) - 1, 0))
    told = np.flatnonzero(work.row[known] == rows) if len(work.row) else np.empty(0, np.intp)
    told = told[np.argsort(place[told])]
    return msgspec.structs.replace(
        work,
        row=place[told].astype(np.int64),
        module=work.module[known[told]],
        backward=work.backward[known[told]],
    )


def _told(light: Trace, full: Trace, like: list[int]) -> list[CollectiveCall]:
    """The light recording's collectives with what only the full one says, groups and sizes, by steps that are alike."""
    calls = {call.row: call for call in light.collectives}
    others = _by_step(full)
    for mine, other in zip(_by_step(light), (others[index] for index in like), strict=True):
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
    for begin, _, end in _steps(trace):
        found.append([call for time, _, call in timed if begin <= time < end])
    return found
