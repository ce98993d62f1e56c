"""What the host threads were doing: working, waiting for data, or blocked on the device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.distinct import among, distinct
from gpudiag.intervals import EMPTY, Intervals, union
from gpudiag.model.event import EventKind, EventTable, names_matching
from gpudiag.model.timeline import HostThread
from gpudiag.units import NS_PER_US

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Pauses of a thread between two recorded events up to this long count as Python running between framework calls. In
#: traces of five workloads 99.5 % of such pauses were below 0.3 ms (95 % below 0.02 ms); the rest were loaders and
#: waits.
PAUSE_NS = 500 * NS_PER_US

_INPUT = re.compile(
    r"enumerate\(DataLoader\)"  # torch.utils.data, all versions
    r"|.*DataLoaderIter\.__next__"
    r"|gpudiag\.input$"
    r"|.*\btrain_dataloader_next\b"  # Lightning's profiler
    r"|.*\bdataloader_next\b|.*\bfetch_batch\b|.*\bget_batch\b"
    r"|Iterator(?:GetNext|GetNextAsOptional|GetNextSync)(?:Op)?::DoCompute",  # tf.data
    re.IGNORECASE,
)

_BLOCKING = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize"
    r"|cu(?:Ctx|Stream|Event)Synchronize"
    r"|(?:cuda|hip)(?:Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol|Free|FreeHost|HostUnregister)(?:_v\d+)?$"
    r"|hipMemcpyWithStream$"
    r"|cuMemcpy(?:HtoD|DtoH|DtoD)?(?:_v\d+)?$"
    r"|tf\.executor waits for the device$"  # derived by the reader of TensorFlow's traces
)
_MAYBE_BLOCKING = re.compile(r"(?:cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async")
_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)


def host_threads(
    events: EventTable, rows: NDArray[np.intp], pageable_calls: NDArray[np.intp], shift_ns: int
) -> dict[int, HostThread]:
    """The threads that run framework ops, launch device work or wait for data, by thread id.

    Args:
        events: the process's events, on the trace's own clock.
        rows: the host rows to look at (operators, annotations, runtime calls).
        pageable_calls: rows of runtime calls that copied from or to pageable memory, which blocks the caller.
        shift_ns: added to every time.
    """
    is_input = names_matching(events.names, _INPUT)
    is_blocking = names_matching(events.names, _BLOCKING)
    kind, name = events.kind[rows], events.name[rows]
    working = (kind == EventKind.OPERATOR) | (kind == EventKind.RUNTIME)
    waiting = ((kind == EventKind.ANNOTATION) | (kind == EventKind.OPERATOR) | (kind == EventKind.PYTHON)) & is_input[
        name
    ]
    blocked = (kind == EventKind.RUNTIME) & is_blocking[name]
    blocked |= among(rows, pageable_calls)
    start, end, thread = events.start_ns[rows] + shift_ns, events.end_ns[rows] + shift_ns, events.thread[rows]
    threads = {}
    for ident in distinct(thread[working | waiting]):
        mine = np.flatnonzero(thread == ident)
        blocks = mine[blocked[mine]]
        threads[int(ident)] = HostThread(
            thread=int(ident),
            busy=union(_raw(start, end, mine[working[mine]]), bridge_ns=PAUSE_NS),
            input=union(_raw(start, end, mine[waiting[mine]])),
            blocked=_raw(start, end, blocks),
            blocking_calls=tuple(events.names[i] for i in name[blocks].tolist()),
        )
    return threads


def pageable_copy_calls(events: EventTable, copy_rows: NDArray[np.intp], calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of the asynchronous copy calls that blocked all the same, because the host memory was pageable."""
    if len(copy_rows) == 0:
        return np.empty(0, np.intp)
    pageable = names_matching(events.names, _PAGEABLE)[events.name[copy_rows]] & (calls >= 0)
    candidates = distinct(calls[pageable])
    return candidates[names_matching(events.names, _MAYBE_BLOCKING)[events.name[candidates]]]


def merged(threads: dict[int, HostThread], *idents: int) -> tuple[Intervals, Intervals]:
    """(busy, input) of several threads together; threads that were not recorded count as silent."""
    present = [threads[ident] for ident in dict.fromkeys(idents) if ident in threads]
    if not present:
        return EMPTY, EMPTY
    return union(*(thread.busy for thread in present)), union(*(thread.input for thread in present))


def _raw(start: NDArray[np.int64], end: NDArray[np.int64], chosen: NDArray[np.intp]) -> Intervals:
    return Intervals(start[chosen], end[chosen])
