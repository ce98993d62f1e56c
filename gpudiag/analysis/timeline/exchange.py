"""Where the host itself is at an exchange: a collective that it carries out, or a hook, a parameter server, a gather.

    host     gloo:all_reduce ├──────────────────────┤      gpudiag.exchange ├── copy, sum, copy back ──┤
    device   ── backward ──┤                          ├── optimizer ──

What the device does not do meanwhile it does not do because of the exchange. A parameter server that updates in host
memory does so between its exchanges, inside an optimizer's step that gives the device nothing but their copies:

    host     Optimizer.step ├ exchange: sum ┤ update of the host's copy ├ exchange: fetch ┤
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, union
from gpudiag.model.event import NO_CORRELATION, EventKind, EventTable, Role

Spans = dict[int, Intervals]

_ON_HOST = (EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)


def exchange_spans(events: EventTable, shift_ns: int, *roles: Role) -> Spans:
    """When each host thread is in an event of one of these roles, as sets by thread id.

    Args:
        events: the process's events, on the trace's own clock.
        shift_ns: added to every time.
        roles: `EXCHANGE`, and what goes with it where that is asked for.
    """
    rows = events.rows_of(*_ON_HOST)
    exchanging = rows[np.isin(events.role[rows], roles)]
    exchanging = np.concatenate([exchanging, _updates_on_host(events, rows)])
    threads = np.unique(events.thread[exchanging]).tolist()
    return {thread: _spans(events, exchanging[events.thread[exchanging] == thread], shift_ns) for thread in threads}


def copies_beside(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """bool[n]: which of these device rows lie in a range of an exchange as their stream shows it.

    What a library's own threads launch has no launch in the trace, but the ranges that it was launched for.
    """
    marks = events.rows_of(EventKind.DEVICE_ANNOTATION)
    marks = marks[events.role[marks] == Role.EXCHANGE]
    beside = np.zeros(len(rows), np.bool_)
    for device, stream in {*zip(events.device[marks].tolist(), events.thread[marks].tolist(), strict=True)}:
        mine = marks[(events.device[marks] == device) & (events.thread[marks] == stream)]
        here = np.flatnonzero((events.device[rows] == device) & (events.thread[rows] == stream))
        beside[here] = within(_spans(events, mine, 0), events.start_ns[rows[here]])
    return beside


def launched_within(spans: Spans, thread: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: whether each host thread was inside its spans at each time."""
    inside = np.zeros(len(time), np.bool_)
    for ident, found in spans.items():
        mine = np.flatnonzero(thread == ident)
        inside[mine] = within(found, time[mine])
    return inside


def within(spans: Intervals, time: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[n]: whether each time lies in the set."""
    if len(spans) == 0:
        return np.zeros(len(time), np.bool_)
    slot = np.searchsorted(spans.start, time, side="right") - 1
    found: NDArray[np.bool_] = (slot >= 0) & (time < spans.end[np.maximum(slot, 0)])
    return found


def _updates_on_host(events: EventTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Optimizer steps around an exchange of a job with devices that give them no work but copies."""
    exchanges = rows[events.role[rows] == Role.EXCHANGE]
    kernels = events.correlation[events.rows_of(EventKind.KERNEL)]
    if len(exchanges) == 0 or len(kernels) == 0:
        return np.empty(0, np.intp)
    calls = rows[(events.kind[rows] == EventKind.RUNTIME) & (events.correlation[rows] != NO_CORRELATION)]
    launches = calls[np.isin(events.correlation[calls], kernels)]
    steps = rows[events.role[rows] == Role.OPTIMIZER]
    kept = [row for row in steps.tolist() if _holds(events, row, exchanges) and not _holds(events, row, launches)]
    return np.array(kept, np.intp)


def _holds(events: EventTable, row: int, others: NDArray[np.intp]) -> bool:
    """Whether one of the other rows begins inside the row, on its thread."""
    begun = (events.start_ns[others] >= events.start_ns[row]) & (events.start_ns[others] < events.end_ns[row])
    return bool((begun & (events.thread[others] == events.thread[row])).any())


def _spans(events: EventTable, rows: NDArray[np.intp], shift_ns: int) -> Intervals:
    return union(Intervals(events.start_ns[rows] + shift_ns, events.end_ns[rows] + shift_ns))
