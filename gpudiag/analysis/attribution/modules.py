"""What each module of the model takes in the analysed steps, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.attribution.summary import in_analysed_steps
from gpudiag.intervals import distinct, lengths_inside, own_lengths
from gpudiag.model.analysis import Modules, ModuleTime
from gpudiag.model.event import EventKind, EventTable, Module, ModuleWork, Role, any_of
from gpudiag.model.run import RunRecord
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import milliseconds

#: Of a rank whose recording has no marks.
_NOTHING = ModuleWork(
    modules=(), row=np.empty(0, np.int64), module=np.empty(0, np.int32), backward=np.empty(0, np.bool_)
)


class _Work(NamedTuple):
    """What one lane's analysed steps hold, summed: float64[modules + 1] each, the last of what no module did."""

    forward_ns: NDArray[np.float64]
    backward_ns: NDArray[np.float64]
    calls: NDArray[np.float64]


def summarise_modules(timeline: Timeline, run: RunRecord | None) -> Modules | None:
    """Of all lanes; None where no module is known, with the reason where the run tells one.

    Worked example. `net` calls `net.a`, whose operators take 3 ms forward and 5 backward, and adds 1 ms itself: the own
    times of `a` are 3 and 5 and those of `net` 1 and 0; with what is below them `net` takes 4 and 5.
    """
    traces = [timeline.traces[track.trace].modules for track in timeline.tracks]
    if all(work is None for work in traces):
        reason = next((rank.unmarked for rank in run.ranks if rank.unmarked), "") if run is not None else ""
        return Modules(reason=reason) if reason else None
    modules = list(dict.fromkeys(module for work in traces if work is not None for module in _as_called(work)))
    index = {module: place for place, module in enumerate(modules)}
    tracks = [
        _work_of(timeline, track, work, np.array([index[one] for one in work.modules], np.intp), len(modules))
        for track, work in zip(timeline.tracks, (work or _NOTHING for work in traces), strict=True)
    ]
    below = _below(modules)
    times = [_module_time(module, place, below[place], tracks) for place, module in enumerate(modules)]
    return Modules(
        times=tuple(time for time in times if time is not None),
        outside_ms=tuple(milliseconds(float(track.forward_ns[-1] + track.backward_ns[-1])) for track in tracks),
    )


def _as_called(work: ModuleWork) -> Iterator[Module]:
    """The modules in the order of their first work."""
    first = np.full(len(work.modules), np.iinfo(np.int64).max)
    np.minimum.at(first, work.module, work.row)
    yield from (work.modules[place] for place in np.argsort(first, kind="stable").tolist())


def _below(modules: Sequence[Module]) -> list[list[int]]:
    """For each module the places of itself and of those below it in path."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, module in enumerate(modules):
        parts = module.path.split(".") if module.path else []
        for depth in range(len(parts) + 1):
            found.setdefault((module.root, ".".join(parts[:depth])), []).append(place)
    return [found[module.root, module.path] for module in modules]


def _module_time(module: Module, place: int, below: list[int], tracks: Sequence[_Work]) -> ModuleTime | None:
    calls = float(np.mean([track.calls[place] for track in tracks]))
    forward = [float(track.forward_ns[below].sum()) for track in tracks]
    backward = [float(track.backward_ns[below].sum()) for track in tracks]
    if not calls and not any(forward) and not any(backward):
        return None
    return ModuleTime(
        root=module.root,
        path=module.path,
        type=module.kind,
        calls=calls,
        forward_ms=tuple(map(milliseconds, forward)),
        backward_ms=tuple(map(milliseconds, backward)),
        own_forward_ms=tuple(milliseconds(float(track.forward_ns[place])) for track in tracks),
        own_backward_ms=tuple(milliseconds(float(track.backward_ns[place])) for track in tracks),
    )


def _work_of(timeline: Timeline, track: DeviceTrack, work: ModuleWork, index: NDArray[np.intp], count: int) -> _Work:
    """Per analysed step; `index` is the place of each of the work's own modules among all `count`."""
    events = timeline.traces[track.trace].events
    row, lasts_ns = _on_cpu(events, track) if track.is_cpu else _on_gpu(events, track)
    known = _place_of(work.row, row)  # where it is not known, -1: the last
    module = np.append(index[work.module], count)[known]
    backward = np.append(work.backward, False)[known]
    marks = work.row[~work.backward & (events.kind[work.row] == EventKind.MODULE)]
    marks = marks[in_analysed_steps(track, events.start_ns[marks] + track.shift_ns)]
    steps = len(track.window_steps)
    forward_ns, backward_ns = (
        np.bincount(module[chosen], weights=lasts_ns[chosen], minlength=count + 1) / steps
        for chosen in (~backward, backward)
    )
    called = index[work.module[_place_of(work.row, marks)]]
    return _Work(forward_ns, backward_ns, np.bincount(called, minlength=count + 1) / steps)


def _place_of(rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """intp[n]: where each wanted row stands among the sorted rows, `UNKNOWN` where it does not."""
    place = np.minimum(np.searchsorted(rows, wanted), max(len(rows) - 1, 0))
    return np.where(rows[place] == wanted, place, UNKNOWN) if len(rows) else np.full(len(wanted), UNKNOWN)


def _on_cpu(events: EventTable, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the operators of the threads that train, in the analysed steps, and their own times.

    Neither what hands over or carries out an exchange counts, nor what of an operator is waiting for one.
    """
    rows, lasts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    operators = events.rows_of(EventKind.OPERATOR)
    for thread in {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}:
        mine = operators[events.thread[operators] == thread]
        start, end = events.start_ns[mine] + track.shift_ns, events.end_ns[mine] + track.shift_ns
        known = track.threads.get(thread)
        waits = np.zeros(len(mine), np.int64) if known is None else lengths_inside(known.awaited, start, end)
        own = own_lengths(start, end, end - start - waits)
        inside = in_analysed_steps(track, start)
        inside &= ~any_of(events.role[mine], Role.COMMUNICATION, Role.ENQUEUE, Role.INPUT)
        rows.append(mine[inside].astype(np.int64))
        lasts.append(own[inside])
    return np.concatenate(rows), np.concatenate(lasts)


def _on_gpu(events: EventTable, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row of what launched each kernel, copy and memset of the analysed windows, and how long each took."""
    ops = track.ops
    inside = (ops.op_class != OpClass.COMMUNICATION) & (ops.start >= track.bounds[0]) & (ops.start < track.bounds[-1])
    launched = np.full(len(ops), UNKNOWN, np.int64)
    around = events.rows_of(EventKind.OPERATOR, EventKind.MODULE)
    for thread in distinct(ops.launch_thread[inside]).tolist():
        mine = inside & (ops.launch_thread == thread) & (ops.launch_start != UNKNOWN)
        rows = around[events.thread[around] == thread]
        launched[mine] = _innermost(events, rows, ops.launch_start[mine] - track.shift_ns)
    return launched[inside], (ops.end - ops.start)[inside]


def _innermost(events: EventTable, rows: NDArray[np.intp], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[n]: the innermost of the rows, of one thread by start, that holds each time; `UNKNOWN` for none.

    A row is as deep as rows have begun before it and not ended; those of one depth follow each other.
    """
    start, end = events.start_ns[rows], events.end_ns[rows]
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(end), start, side="right")
    found = np.full(len(time), UNKNOWN, np.int64)
    for level in range(int(depth.max(initial=-1)) + 1):
        mine = np.flatnonzero(depth == level)
        last = np.searchsorted(start[mine], time, side="right") - 1
        holds = (last >= 0) & (end[mine][last] > time) if len(mine) else np.zeros(len(time), np.bool_)
        found[holds] = rows[mine[last[holds]]]
    return found
