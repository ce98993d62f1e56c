"""Find when host threads worked, waited for data, or were blocked on the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import Intervals, distinct, groups, union
from gpudiag.model.event import EventKind, EventTable, HostMemory, Role, any_of
from gpudiag.model.timeline import PAUSE_NS, HostThread


def host_threads(events: EventTable, pageable_calls: NDArray[np.intp]) -> dict[int, HostThread]:
    """Return the threads that run framework ops, launch device work or wait for data, by id, on the trace's clock.

    Args:
        events: the process's events, on the trace's own clock.
        pageable_calls: rows of runtime calls that copied from or to pageable memory, which blocks the caller.
    """
    kind, role, thread = events.kind, events.role, events.thread
    on_host = any_of(kind, EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.PYTHON)
    working = any_of(kind, EventKind.OPERATOR, EventKind.RUNTIME)
    waiting = any_of(role, Role.INPUT) & on_host
    # A runtime call with a communication role is a wait of an executor for its collective or its copies.
    waits = any_of(role, Role.COMMUNICATION) & any_of(kind, EventKind.RUNTIME)
    blocked = (any_of(role, Role.SYNCHRONIZATION, Role.RELEASE) & on_host) | waits
    blocked[pageable_calls] = True
    known, busy = working | waiting, working & ~waits
    rows = np.flatnonzero(known | blocked)
    threads = {}
    for ident, positions in groups(thread[rows]):
        own = rows[positions]
        if known[own].any():
            threads[ident] = HostThread(
                thread=ident,
                busy=union(_raw(events, own[busy[own]]), bridge_ns=PAUSE_NS),
                input=union(_raw(events, own[waiting[own]])),
                blocked=_raw(events, own[blocked[own]]),
            )
    return threads


def pageable_copy_calls(events: EventTable, copy_rows: NDArray[np.intp], calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows of asynchronous copy calls that blocked nevertheless, because the host memory was pageable."""
    if len(copy_rows) == 0:
        return np.empty(0, np.intp)
    pageable = (events.host_memory[copy_rows] == HostMemory.PAGEABLE) & (calls >= 0)
    # The driver buffers copies of a few kilobytes, which begin after their call has returned.
    pageable &= events.start_ns[copy_rows] < events.end_ns[calls]
    candidates = distinct(calls[pageable])
    blocking: NDArray[np.intp] = candidates[events.role[candidates] == Role.COPY]
    return blocking


def _raw(events: EventTable, rows: NDArray[np.intp]) -> Intervals:
    return Intervals(events.start_ns[rows], events.end_ns[rows])
