"""Merge the operators of a full trace into a kernel-only trace of the same job.

Recording operators slows the host by up to 60 %, but a trace without operators does not show what the host did between
two CUDA calls. The calls that two matching steps have in common have times in both traces. Times between these calls
are interpolated:

    full trace          step ├ aten::conv ┤launch├ aten::bn ┤──┤launch├ … ┤   an operator between two launches takes
    kernel-only trace   step ├─────┤launch├────────┤launch├ … ┤               the same share of the time between them

Kernels, copies, calls and marks keep the times of the kernel-only trace.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import (
    HOST,
    CollectiveCall,
    EventKind,
    EventTable,
    ModuleWork,
    OperatorWork,
    StepMarks,
    Trace,
    in_order,
)
from gpudiag.trace.same_calls import (
    NONE,
    StepCalls,
    calls_of_steps,
    common_calls,
    count_common,
    most_similar_steps,
    same_threads,
    step_threads,
)

Span = tuple[int, int, int]
"""A step: (begin of the step and its mark, end of the mark, begin of the next step), in ns."""

SAME_STEPS = 0.85
"""Minimum share of common calls for steps of two traces to count as the same. Measured (two H200, PyTorch 2.11): in 55
jobs, the two traces of one job had at least 97 % of calls in common; traces of two models had at most 37 %, or 75 % if
most calls of both launch the same tiny kernel."""
_MERGED_KINDS = (EventKind.OPERATOR, EventKind.PYTHON, EventKind.MODULE)
_Rows = TypeVar("_Rows", ModuleWork, OperatorWork)


def with_operators(kernel_only: Trace, full: Trace) -> Trace | None:
    """Return the kernel-only trace with the operators of the full trace of the same process.

    Return None if too few calls of the two traces' steps match, or if a trace has no step marks.
    """
    if not kernel_only.step_marks or not full.step_marks:
        return None
    all_names = dict.fromkeys((*kernel_only.events.names, *full.events.names))
    numbers = {name: index for index, name in enumerate(all_names)}
    steps, full_steps = _steps(kernel_only), _steps(full)
    # `step[::2]` is (begin of the step, begin of the next step).
    calls = calls_of_steps(kernel_only.events, [step[::2] for step in steps], numbers)
    full_calls = calls_of_steps(full.events, [step[::2] for step in full_steps], numbers)
    if renamed := same_threads(calls, full_calls):
        full = _with_threads(full, renamed)
        full_calls = [{renamed.get(thread, thread): work for thread, work in step.items()} for step in full_calls]
    matches = most_similar_steps(calls, full_calls)
    merged: list[NDArray[np.int64]] = []
    common = total = 0
    for step, step_calls, index in zip(steps, calls, matches, strict=True):
        threads = _matching_threads(step_calls, full_calls[index])
        pairs = {
            thread: common_calls(step_calls.get(thread, NONE), full_calls[index][full_thread])
            for thread, full_thread in threads.items()
        }
        step_common, step_total = count_common(step_calls, full_calls[index], pairs)
        common, total = common + step_common, total + step_total
        for thread, (here, there) in pairs.items():
            # Times of the same moments, in ns: (in the full trace, in the kernel-only trace).
            known = (
                _edges(full.events, full_calls[index][threads[thread]].row[there], full_steps[index]),
                _edges(kernel_only.events, step_calls.get(thread, NONE).row[here], step),
            )
            rows = _operator_rows(full.events, full_steps[index], threads[thread])
            times = [np.interp(column[rows], *known) for column in (full.events.start_ns, full.events.end_ns)]
            merged.append(np.array([rows, np.full(len(rows), thread), *times], np.int64))
    if not common or common < SAME_STEPS * total:
        return None
    return _merge(kernel_only, full, matches, np.concatenate(merged, axis=1))


def _matching_threads(here: StepCalls, there: StepCalls) -> dict[int, int]:
    """Return thread of the kernel-only trace → thread of the full trace with the same work in this step."""
    moved = step_threads(here, there)
    return {thread: thread for thread in there.keys() - moved.keys()} | {ours: theirs for theirs, ours in moved.items()}


def _with_threads(trace: Trace, renamed: dict[int, int]) -> Trace:
    """Return the trace with its host threads renumbered by `renamed` (old number → new number)."""
    thread = trace.events.thread.copy()
    host = trace.events.device == HOST
    for number, new_number in renamed.items():
        thread[host & (trace.events.thread == number)] = new_number
    return msgspec.structs.replace(trace, events=msgspec.structs.replace(trace.events, thread=thread))


def _steps(trace: Trace) -> list[Span]:
    """Return the marked steps. The last step ends with its mark."""
    marks = trace.step_marks[0].row
    begin, end = trace.events.start_ns[marks].tolist(), trace.events.end_ns[marks].tolist()
    return list(zip(begin, end, [*begin[1:], end[-1]], strict=True))


def _edges(events: EventTable, calls: NDArray[np.intp], step: Span) -> NDArray[np.float64]:
    """Return float64[2k + 3]: begin of a step, begins and ends of its k calls, end of its mark, end of the step.

    A time below the preceding time is raised to it, because `np.interp` requires ascending times.
    """
    edges = np.empty(2 * len(calls) + 3)
    edges[0], edges[-2], edges[-1] = step
    edges[1:-2:2], edges[2:-2:2] = events.start_ns[calls], events.end_ns[calls]
    return np.maximum.accumulate(edges)


def _operator_rows(events: EventTable, step: Span, thread: int) -> NDArray[np.intp]:
    """Return the rows of the operators, Python functions and modules that begin on a thread in a step."""
    rows = events.rows_of(*_MERGED_KINDS)
    first, last = np.searchsorted(events.start_ns[rows], step[::2])
    on_thread: NDArray[np.intp] = rows[first:last][events.thread[rows[first:last]] == thread]
    return on_thread


def _merge(kernel_only: Trace, full: Trace, matches: list[int], merged: NDArray[np.int64]) -> Trace:
    """Return the kernel-only trace with operators of the full trace added.

    `matches` has the full trace's step for each kernel-only step. `merged` is int64[4, n]: rows of the full trace, and
    their thread, begin and end in the kernel-only trace.
    """
    rows, thread, start, end = merged
    names = {name: index for index, name in enumerate(kernel_only.events.names)}
    name_index = np.array([names.setdefault(name, len(names)) for name in full.events.names], np.int32)
    added = {name: column[rows] for name, column in full.events.columns().items()}
    added |= {"thread": thread, "start_ns": start, "end_ns": np.maximum(end, start), "name": name_index[added["name"]]}
    columns = {name: np.concatenate([column, added[name]]) for name, column in kernel_only.events.columns().items()}
    events, position = in_order(columns, tuple(names))
    added_rows = position[len(kernel_only.events) :]
    return msgspec.structs.replace(
        kernel_only,
        events=events,
        collectives=tuple(
            msgspec.structs.replace(call, row=int(position[call.row]))
            for call in _with_details(kernel_only, full, matches)
        ),
        groups=full.groups | kernel_only.groups,
        step_marks=tuple(
            StepMarks(source=marks.source, row=np.sort(position[marks.row]), number=marks.number)
            for marks in kernel_only.step_marks
        ),
        event_waits=kernel_only.event_waits.moved(position),
        modules=None if full.modules is None else _moved(full.modules, rows, added_rows),
        operator_work=None if full.operator_work is None else _moved(full.operator_work, rows, added_rows),
        operators_merged=True,
        # Without operators, a trace may not show whether the job trains.
        workload=kernel_only.workload if kernel_only.workload == "training" else full.workload,
    )


def _moved(work: _Rows, rows: NDArray[np.int64], position: NDArray[np.intp]) -> _Rows:
    """Return the columns of `work` for the events `rows`, renumbered to the rows `position` of another table.

    A row may occur several times in `rows`, because several kernel-only steps may match one step of the full trace.
    """
    slot = np.minimum(np.searchsorted(work.row, rows), max(len(work.row) - 1, 0))
    known = np.flatnonzero(work.row[slot] == rows) if len(work.row) else np.empty(0, np.intp)
    known = known[np.argsort(position[known])]
    columns = {name: column for name, column in msgspec.structs.asdict(work).items() if isinstance(column, np.ndarray)}
    moved = {name: column[slot[known]] for name, column in columns.items()} | {"row": position[known].astype(np.int64)}
    return msgspec.structs.replace(work, **moved)


def _with_details(kernel_only: Trace, full: Trace, matches: list[int]) -> list[CollectiveCall]:
    """Return the kernel-only trace's collectives, with groups, peers and sizes added from the full trace.

    `matches` is as in `_merge`. Nothing is added in steps whose collectives differ from those of the matching step in
    number or operation.
    """
    calls = {call.row: call for call in kernel_only.collectives}
    by_step = _collectives_by_step(full)
    for ours, theirs in zip(_collectives_by_step(kernel_only), (by_step[index] for index in matches), strict=True):
        # Without operators, a kernel does not show whether it sends or receives.
        named = [(call.operation, other.operation) for call, other in zip(ours, theirs, strict=False)]
        if len(ours) != len(theirs) or any(here not in {there, "send_recv"} for here, there in named):
            continue
        for call, full_call in zip(ours, theirs, strict=True):
            calls[call.row] = msgspec.structs.replace(
                call,
                operation=full_call.operation,
                group=call.group or full_call.group,
                group_ranks=call.group_ranks or full_call.group_ranks,
                peer=full_call.peer if call.peer is None else call.peer,
                size_bytes=full_call.size_bytes if call.size_bytes is None else call.size_bytes,
            )
    return list(calls.values())


def _collectives_by_step(trace: Trace) -> list[list[CollectiveCall]]:
    """Return the device collectives that each step launched, in the order of their launches.

    Collectives whose launch was not recorded belong to no step.
    """
    events = trace.events
    calls = events.rows_of(EventKind.RUNTIME)
    launch_ns = dict(zip(events.correlation[calls].tolist(), events.start_ns[calls].tolist(), strict=True))
    kernels = [call for call in trace.collectives if events.kind[call.row] == EventKind.KERNEL]
    launched = sorted((launch_ns.get(int(events.correlation[call.row]), -1), call.row, call) for call in kernels)
    return [[call for time, _, call in launched if begin <= time < end] for begin, _, end in _steps(trace)]
