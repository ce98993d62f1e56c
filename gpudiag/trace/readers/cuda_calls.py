"""Host calls of the CUDA and HIP runtimes and drivers, which all profilers record by the same names."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpudiag.intervals import among, distinct
from gpudiag.model.event import DEVICE_WORK, HOST, NO_CORRELATION, EventKind, EventTable, Role, any_of
from gpudiag.trace.readers.names import events_named

Rows = NDArray[np.intp]

#: Suffixes of versions and of per-thread streams: `cudaMemcpy_v3020_ptds`, `hipMemcpy_spt`.
_VERSION = r"(?:_v\d+|_ptds|_ptsz|_spt)*$"
_MEMSET = re.compile(r"(?:cuda|hip|cu)Memset")
_GRAPH_LAUNCH = re.compile(r"(?:cuda|hip|cu)GraphLaunch")
_BEGIN_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamBeginCapture")
_END_CAPTURE = re.compile(r"(?:cuda|hip|cu)StreamEndCapture")
#: The methods of `torch.cuda.CUDAGraph` that begin and end a capture, in recorded Python stacks.
_BEGIN_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_begin\b")
_END_FUNCTION = re.compile(r"(?:.*\.py\(\d+\): |<built-in method )capture_end\b")

_ROLES = (
    (
        Role.SYNCHRONIZATION,
        re.compile(
            r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
            r"|cu(?:Ctx|Stream|Event)Synchronize"
            r"|(?:cuda|hip)(?:Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol)"
            + _VERSION
            + r"|hipMemcpy(?:WithStream|HtoD|DtoH|DtoD)"
            + _VERSION
            + r"|cuMemcpy(?:HtoD|DtoH|DtoD)?"
            + _VERSION
        ),
    ),
    (Role.STREAM_WAIT, re.compile(r"(?:cuda|hip|cu)StreamWaitEvent")),
    (Role.COPY, re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")),
    (
        Role.RELEASE,
        re.compile(
            r"(?:cuda|hip)(?:Free|FreeHost|HostFree|HostUnregister)"
            + _VERSION
            + r"|cuMem(?:Free|FreeHost|Unmap)"
            + _VERSION
        ),
    ),
    (
        Role.ALLOCATION,
        re.compile(
            r"(?:cuda|hip)(?:Malloc(?!Async|FromPool)|ExtMalloc|HostAlloc|HostMalloc|HostRegister)"
            r"|cuMem(?:Alloc(?!Async|FromPool)|Create|Map|SetAccess|HostAlloc)"
        ),
    ),
    (Role.LAUNCH, re.compile(r"(?:cuda|hip|cu)\w*(?:Launch|Memset)")),
)


def is_memset(name: str) -> bool:
    """Return whether a call sets device memory."""
    return _MEMSET.match(name) is not None


def is_graph_launch(name: str) -> bool:
    """Return whether a call launches a CUDA or HIP graph.

    >>> is_graph_launch("hipGraphLaunch"), is_graph_launch("cudaGraphInstantiate")
    (True, False)
    """
    return _GRAPH_LAUNCH.match(name) is not None


@cache
def role_of_call(name: str) -> Role:
    """Return the role of a call.

    >>> role_of_call("cudaMemcpyAsync"), role_of_call("cudaMemcpy_v3020")
    (<Role.COPY: 3>, <Role.SYNCHRONIZATION: 5>)
    >>> role_of_call("hipMemcpyWithStream"), role_of_call("hipHostFree")
    (<Role.SYNCHRONIZATION: 5>, <Role.RELEASE: 16>)
    >>> role_of_call("cuLaunchKernelEx"), role_of_call("cudaEventQuery")
    (<Role.LAUNCH: 4>, <Role.OTHER: 0>)
    """
    return next((role for role, pattern in _ROLES if pattern.match(name)), Role.OTHER)


def roles_without_idle_launches(table: EventTable) -> NDArray[np.uint8]:
    """Return the role column, uint8[n], with `OTHER` for memsets and captured launches that have no device op.

    Such calls have no device op although the profiler lost nothing:

        cudaMemsetAsync                          a memset of zero bytes, or one that the driver does by other means
        cudaStreamBeginCapture ┤ launch launch ├ cudaStreamEndCapture    work captured into a graph, which runs later
    """
    calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & any_of(table.role, Role.LAUNCH, Role.COPY))
    if not len(calls):
        return table.role
    calls = calls[~_has_work(table, calls)]
    idle = events_named(table, _MEMSET.match)[calls]
    for thread, (begin, end) in _captures(table).items():
        slot = np.searchsorted(begin, table.start_ns[calls], side="right") - 1
        idle |= (table.thread[calls] == thread) & (slot >= 0) & (table.start_ns[calls] < end[np.maximum(slot, 0)])
    if not idle.any():
        return table.role
    role = table.role.copy()
    role[calls[idle]] = Role.OTHER
    return role


def count_unrecorded_graphs(table: EventTable) -> int:
    """Return how many graph launches have no recorded device work, except at the end of the recording.

    The kernels of a graph have the correlation of its launch. Some profilers give them a correlation that no recorded
    call has: such kernels between one graph launch and the next belong to the graph.
    """
    launches = np.flatnonzero((table.kind == EventKind.RUNTIME) & events_named(table, is_graph_launch))
    if not len(launches):
        return 0
    work = table.rows_of(*DEVICE_WORK)
    calls = table.rows_of(EventKind.RUNTIME)
    unlaunched = np.sort(table.start_ns[work[~among(table.correlation[work], table.correlation[calls])]])
    start = table.start_ns[launches]
    until = np.append(start[1:], np.iinfo(np.int64).max)
    has_unlaunched = np.searchsorted(unlaunched, until) > np.searchsorted(unlaunched, start)
    unrecorded = ~_has_work(table, launches) & ~has_unlaunched
    if len(work):  # the last launches may have run after the profiler stopped
        unrecorded &= start < table.start_ns[work[-1]]
    return int(np.count_nonzero(unrecorded))


def _has_work(table: EventTable, calls: Rows) -> NDArray[np.bool_]:
    """Return for each call whether a device op has its correlation."""
    work = table.rows_of(*DEVICE_WORK)
    correlation = table.correlation[calls]
    has_work: NDArray[np.bool_] = among(correlation, table.correlation[work]) & (correlation != NO_CORRELATION)
    return has_work


def _captures(table: EventTable) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the begins and ends of graph captures by thread, int64[k] each.

    A capture that began before the recording begins with it.
    """
    runtime = table.kind == EventKind.RUNTIME
    python = table.kind == EventKind.PYTHON
    begins = runtime & events_named(table, _BEGIN_CAPTURE.match) | python & events_named(table, _BEGIN_FUNCTION.match)
    ends = runtime & events_named(table, _END_CAPTURE.match) | python & events_named(table, _END_FUNCTION.match)
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
