"""Compute the time of each module of the model in the analysed steps, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.compute.launchers import in_analysed_steps, launching_rows
from gpudiag.intervals import distinct, lengths_inside, own_lengths
from gpudiag.model.analysis import Modules, ModuleTime
from gpudiag.model.event import EventKind, EventTable, Module, ModuleWork, Role, any_of
from gpudiag.model.run import RunRecord
from gpudiag.model.timeline import UNKNOWN, DeviceTrack, OpClass, Timeline
from gpudiag.units import milliseconds

#: Module work of a rank whose recording has no modules.
_NO_WORK = ModuleWork(
    modules=(), row=np.empty(0, np.int64), module=np.empty(0, np.int32), backward=np.empty(0, np.bool_)
)


class _TrackWork(NamedTuple):
    """Mean work per analysed step of a track: float64[modules + 1]; the last element is for work outside of modules."""

    forward_ns: NDArray[np.float64]
    backward_ns: NDArray[np.float64]
    calls: NDArray[np.float64]


def summarise_modules(timeline: Timeline, run: RunRecord | None) -> Modules | None:
    """Return the times of all modules. If no trace has modules, return the reason in the run record, or None.

    Worked example. `net` calls `net.a`, whose operators take 3 ms forward and 5 ms backward. Operators of `net` itself
    take 1 ms forward. The self times of `net.a` are 3 and 5 ms, those of `net` 1 and 0 ms. Including `net.a`, `net`
    takes 4 and 5 ms.
    """
    traces = [timeline.traces[track.trace].modules for track in timeline.tracks]
    if all(work is None for work in traces):
        return _unmarked(run)
    works = [work or _NO_WORK for work in traces]
    modules = list(dict.fromkeys(module for work in works for module in _by_first_work(work)))
    number = {module: index for index, module in enumerate(modules)}
    tracks = [
        _track_work(timeline, track, work, np.array([number[module] for module in work.modules], np.intp), len(modules))
        for track, work in zip(timeline.tracks, works, strict=True)
    ]
    descendants = _descendants(modules)
    times = [_module_time(module, index, descendants[index], tracks) for index, module in enumerate(modules)]
    return Modules(
        times=tuple(filter(None, times)),
        outside_ms=tuple(milliseconds(float(track.forward_ns[-1] + track.backward_ns[-1])) for track in tracks),
    )


def _unmarked(run: RunRecord | None) -> Modules | None:
    reason = next((rank.unmarked for rank in run.ranks if rank.unmarked), "") if run is not None else ""
    return Modules(reason=reason) if reason else None


def _by_first_work(work: ModuleWork) -> Iterator[Module]:
    """Yield the modules in the order of their first work."""
    first = np.full(len(work.modules), np.iinfo(np.int64).max)
    np.minimum.at(first, work.module, work.row)
    yield from (work.modules[index] for index in np.argsort(first, kind="stable").tolist())


def _descendants(modules: Sequence[Module]) -> list[list[int]]:
    """Return, for each module, the indices of the module and its descendants."""
    descendants: dict[tuple[str, str], list[int]] = {}
    for index, module in enumerate(modules):
        names = module.path.split(".") if module.path else []
        for depth in range(len(names) + 1):
            descendants.setdefault((module.root, ".".join(names[:depth])), []).append(index)
    return [descendants[module.root, module.path] for module in modules]


def _module_time(module: Module, index: int, descendants: list[int], tracks: Sequence[_TrackWork]) -> ModuleTime | None:
    """Return the times of the module at `index`, with and without its descendants; None if the module did not run."""
    calls = float(np.mean([track.calls[index] for track in tracks]))
    forward = [float(track.forward_ns[descendants].sum()) for track in tracks]
    backward = [float(track.backward_ns[descendants].sum()) for track in tracks]
    if not calls and not any(forward) and not any(backward):
        return None
    return ModuleTime(
        root=module.root,
        path=module.path,
        type=module.kind,
        calls=calls,
        forward_ms=tuple(map(milliseconds, forward)),
        backward_ms=tuple(map(milliseconds, backward)),
        own_forward_ms=tuple(milliseconds(float(track.forward_ns[index])) for track in tracks),
        own_backward_ms=tuple(milliseconds(float(track.backward_ns[index])) for track in tracks),
    )


def _track_work(
    timeline: Timeline, track: DeviceTrack, work: ModuleWork, number: NDArray[np.intp], count: int
) -> _TrackWork:
    """Return the work of one track per analysed step.

    Args:
        timeline: all traces.
        track: the track.
        work: the module of each event of the track's trace.
        number: intp[modules of `work`], the index of each module in the list of all tracks' modules.
        count: number of modules of all tracks.
    """
    events = timeline.traces[track.trace].events
    row, duration_ns = _on_cpu(events, track) if track.is_cpu else _on_gpu(events, track)
    position = _position(work.row, row)
    # Work outside of modules has position -1 and therefore selects the appended last element.
    module = np.append(number[work.module], count)[position]
    backward = np.append(work.backward, False)[position]
    calls = work.row[~work.backward & (events.kind[work.row] == EventKind.MODULE)]
    calls = calls[in_analysed_steps(track, events.start_ns[calls] + track.shift_ns)]
    called = number[work.module[_position(work.row, calls)]]
    steps = len(track.window_steps)
    forward_ns, backward_ns = (
        np.bincount(module[direction], weights=duration_ns[direction], minlength=count + 1) / steps
        for direction in (~backward, backward)
    )
    return _TrackWork(forward_ns, backward_ns, np.bincount(called, minlength=count + 1) / steps)


def _position(rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return intp[n]: the position of each wanted row among the sorted rows; `UNKNOWN` (-1) for missing rows."""
    position = np.minimum(np.searchsorted(rows, wanted), max(len(rows) - 1, 0))
    return np.where(rows[position] == wanted, position, UNKNOWN) if len(rows) else np.full(len(wanted), UNKNOWN)


def _on_cpu(events: EventTable, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows, self times in ns) of the training threads' operators in the analysed steps.

    Communication, enqueues and input are left out. The self times exclude waits for communication.
    """
    rows, durations = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    operators = events.rows_of(EventKind.OPERATOR)
    for thread in {track.steps.thread, *distinct(track.ops.launch_thread).tolist()}:
        on_thread = operators[events.thread[operators] == thread]
        start, end = events.start_ns[on_thread] + track.shift_ns, events.end_ns[on_thread] + track.shift_ns
        host = track.threads.get(thread)
        waits = np.zeros(len(on_thread), np.int64) if host is None else lengths_inside(host.awaited, start, end)
        self_ns = own_lengths(start, end, end - start - waits)
        inside = in_analysed_steps(track, start)
        inside &= ~any_of(events.role[on_thread], Role.COMMUNICATION, Role.ENQUEUE, Role.INPUT)
        rows.append(on_thread[inside].astype(np.int64))
        durations.append(self_ns[inside])
    return np.concatenate(rows), np.concatenate(durations)


def _on_gpu(events: EventTable, track: DeviceTrack) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows of launching events, durations in ns) of the kernels, copies and memsets in the analysed windows."""
    ops = track.ops
    inside = (ops.op_class != OpClass.COMMUNICATION) & (ops.start >= track.bounds[0]) & (ops.start < track.bounds[-1])
    launched = launching_rows(events, track, events.rows_of(EventKind.OPERATOR, EventKind.MODULE))
    return launched[inside], (ops.end - ops.start)[inside]
