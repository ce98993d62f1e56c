"""Find host calls that are named after launches and run nothing on a device.

Three kinds of calls have no device op although the profiler lost nothing:

    cudaMemsetAsync                          a memset of zero bytes, or one that the driver carries out by other means
    cudaStreamBeginCapture ┤ launch launch ├ cudaStreamEndCapture    work that is put into a graph and runs later
    cudaGraphLaunch                          a graph, where the profiler does not record the kernels of graphs
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import among, distinct
from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, EventTable, Role, any_of
from gpudiag.trace.readers.cuda_calls import begins_capture, ends_capture, is_graph_launch, is_memset

Rows = NDArray[np.intp]

#: The functions of `torch.cuda.CUDAGraph` that begin and end a capture, where Python functions were recorded.
_BEGIN_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_begin\b")
_END_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_end\b")


def roles_without_idle_launches(table: EventTable) -> NDArray[np.uint8]:
    """Return the role column, uint8[n], with `OTHER` for memsets and captured launches that have no device op."""
    calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & any_of(table.role, Role.LAUNCH, Role.COPY))
    if not len(calls):
        return table.role
    calls = calls[~_has_work(table, calls)]
    idle = _named(table, is_memset)[table.name[calls]]
    captured = _captures(table)
    for thread, (begin, end) in captured.items():
        slot = np.searchsorted(begin, table.start_ns[calls], side="right") - 1
        idle |= (table.thread[calls] == thread) & (slot >= 0) & (table.start_ns[calls] < end[np.maximum(slot, 0)])
    if not idle.any():
        return table.role
    role = table.role.copy()
    role[calls[idle]] = Role.OTHER
    return role


def count_unrecorded_graphs(table: EventTable) -> int:
    """Return how many graph launches have no device work, those at the end of the recording left out.

    The kernels of a graph have the correlation of its launch. Some profilers give them one of their own, which no
    recorded call has: such kernels between a graph launch and the next one are those of the graph.
    """
    launches = np.flatnonzero((table.kind == EventKind.RUNTIME) & _named(table, is_graph_launch)[table.name])
    if not len(launches):
        return 0
    work = table.rows_of(*DEVICE_WORK)
    calls = table.rows_of(EventKind.RUNTIME)
    unlaunched = np.sort(table.start_ns[work[~among(table.correlation[work], table.correlation[calls])]])
    start = table.start_ns[launches]
    until = np.append(start[1:], np.iinfo(np.int64).max)
    own = np.searchsorted(unlaunched, until) > np.searchsorted(unlaunched, start)
    unrecorded = ~_has_work(table, launches) & ~own
    if len(work):  # what was launched last may have run when the profiler had stopped
        unrecorded &= start < table.start_ns[work[-1]]
    return int(np.count_nonzero(unrecorded))


def _has_work(table: EventTable, calls: Rows) -> NDArray[np.bool_]:
    """Return for each call whether a device op has its correlation."""
    work = table.rows_of(*DEVICE_WORK)
    correlation = table.correlation[calls]
    found: NDArray[np.bool_] = among(correlation, table.correlation[work]) & (correlation != NO_CORRELATION)
    return found


def _captures(table: EventTable) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return by thread when captures begin and end; one that began before the recording begins with it."""
    runtime = table.kind == EventKind.RUNTIME
    python = table.kind == EventKind.PYTHON
    begins = runtime & _named(table, begins_capture)[table.name]
    begins |= python & _named(table, _begins_capture_in_python)[table.name]
    ends = runtime & _named(table, ends_capture)[table.name]
    ends |= python & _named(table, _ends_capture_in_python)[table.name]
    marks = np.flatnonzero((begins | ends) & (table.device == HOST))
    last = int(table.end_ns.max(initial=0)) + 1
    captures = {}
    for thread in distinct(table.thread[marks]).tolist():
        spans: list[list[int]] = []
        is_open = False
        first = True
        for row in marks[table.thread[marks] == thread].tolist():
            if begins[row] and not is_open:
                spans.append([int(table.start_ns[row]), last])
                is_open = True
            elif ends[row] and is_open:
                spans[-1][1] = int(table.end_ns[row])
                is_open = False
            elif ends[row] and first:
                spans.append([0, int(table.end_ns[row])])
            first = False
        times = np.array(spans, np.int64).reshape(-1, 2)
        captures[thread] = (times[:, 0], times[:, 1])
    return captures


def _begins_capture_in_python(name: str) -> bool:
    return _BEGIN_FUNCTION.match(name) is not None


def _ends_capture_in_python(name: str) -> bool:
    return _END_FUNCTION.match(name) is not None


def _named(table: EventTable, says: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Return bool[names]: which names a predicate holds of."""
    return np.fromiter((says(name) for name in table.names), np.bool_, len(table.names))
