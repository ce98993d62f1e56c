"""What was communicated: operation, group and size of each communication event, from wherever the trace has it.

PyTorch since 2.2 writes them on the kernel. Before, they stand on the host operator `record_param_comms` that
encloses the kernel's launch; older still, only a range such as `nccl:all_reduce` with the shapes of its inputs.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpudiag.model.event import DEVICE_WORK, NO_CORRELATION, CollectiveCall, EventKind
from gpudiag.readers.collective_names import element_bytes, kernel_operation, normal_operation
from gpudiag.readers.event_json import NO_ARGUMENTS
from gpudiag.readers.header import loosely

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpudiag.model.event import EventTable
    from gpudiag.readers.event_json import Arguments

#: The host range of a collective on CPU (it spans the real work) and on a device (it spans the enqueuing only).
_HOST_WORK = ("gloo:", "mpi:", "ucc:")
_HOST_ENQUEUE = "nccl:"
_HOST_RECORD = "record_param_comms"


class _Details:
    """Operation, group and size as far as one event's arguments tell."""

    __slots__ = ("group", "operation", "ranks", "sequence", "size_bytes")

    def __init__(self, arguments: Arguments, word: str, groups: dict[str, tuple[int, ...]]) -> None:
        told = loosely(arguments.collective, str, "")
        self.operation = normal_operation(told or word)
        self.group = str(loosely(arguments.group, str | int, ""))
        self.ranks = _ranks(loosely(arguments.group_ranks, Any, None)) or groups.get(self.group, ())
        sequence = loosely(arguments.sequence, int, -1)
        self.sequence = sequence if 0 <= sequence < 2**63 else None
        members = len(self.ranks) or loosely(arguments.group_size, int, 0)
        self.size_bytes = _size_from_elements(self.operation, arguments)
        if self.size_bytes is None:
            self.size_bytes = _size_from_inputs(self.operation, arguments, members)


def collective_calls(
    table: EventTable,
    arguments: Sequence[Arguments | None],
    groups: dict[str, tuple[int, ...]],
) -> tuple[CollectiveCall, ...]:
    """One call for each communication kernel; or, without device work, for each collective on the host.

    Args:
        table: the events.
        arguments: the arguments of each row.
        groups: global ranks by process group, from the header.
    """
    only_group = next(iter(groups)) if len(groups) == 1 else ""
    if not np.isin(table.kind, np.array(DEVICE_WORK, dtype=np.uint8)).any():
        return tuple(
            _call(row, _Details(arguments[row] or NO_ARGUMENTS, table.name_of(row), groups), only_group, groups)
            for row in _named_rows(table, _HOST_WORK, EventKind.ANNOTATION).tolist()
        )
    operations = [kernel_operation(name) for name in table.names]
    communicates = np.array([operation is not None for operation in operations], dtype=bool)
    if not communicates.any():
        return ()
    rows = np.flatnonzero((table.kind == EventKind.KERNEL) & communicates[table.name])
    hosts = _HostRecords(table, arguments)
    calls = []
    for row in rows.tolist():
        own = arguments[row] or NO_ARGUMENTS
        by_name = operations[int(table.name[row])] or ""
        details = _Details(own, by_name, groups)
        if not memoryview(own.collective).nbytes and (host := hosts.behind(row)) is not None:
            details = _Details(arguments[host] or NO_ARGUMENTS, table.name_of(host), groups)
            if details.operation == _HOST_RECORD:
                details.operation = by_name
        calls.append(_call(row, details, only_group, groups))
    return tuple(calls)


def _call(row: int, details: _Details, only_group: str, groups: dict[str, tuple[int, ...]]) -> CollectiveCall:
    group = details.group or only_group
    return CollectiveCall(
        row=row,
        operation=details.operation,
        group=group,
        group_ranks=details.ranks or groups.get(group, ()),
        size_bytes=details.size_bytes,
        sequence=details.sequence,
    )


class _HostRecords:
    """Finds the host operator behind a communication kernel, by the launch that it encloses."""

    def __init__(self, table: EventTable, arguments: Sequence[Arguments | None]) -> None:
        self._table = table
        self._arguments = arguments
        self._ready = False
        self._records: dict[int, list[int]] = {}
        self._launches: dict[int, int] = {}

    def behind(self, row: int) -> int | None:
        """The row of the host operator that launched the kernel in `row`; None where the trace has none."""
        self._prepare()
        launch = self._launches.get(int(self._table.correlation[row]))
        if launch is None:
            return None
        start, end, thread = self._table.start_ns, self._table.end_ns, int(self._table.thread[launch])
        # Rows are in order of start: the last record before the launch that still runs is the innermost.
        candidates = self._records.get(thread, [])
        position = int(np.searchsorted(np.array(candidates), launch))
        best: int | None = None
        for candidate in reversed(candidates[max(0, position - 8) : position]):
            if start[candidate] <= start[launch] <= end[candidate]:
                if memoryview((self._arguments[candidate] or NO_ARGUMENTS).collective).nbytes:
                    return candidate
                best = candidate if best is None else best
        return best

    def _prepare(self) -> None:
        if self._ready:
            return
        self._ready = True
        table = self._table
        for row in _named_rows(table, (_HOST_ENQUEUE, _HOST_RECORD), EventKind.ANNOTATION, EventKind.OPERATOR).tolist():
            self._records.setdefault(int(table.thread[row]), []).append(row)
        calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & (table.correlation != NO_CORRELATION))
        self._launches = dict(zip(table.correlation[calls].tolist(), calls.tolist(), strict=True))


def _named_rows(table: EventTable, starts: tuple[str, ...], *kinds: EventKind) -> NDArray[np.intp]:
    """Rows of these kinds whose names start with one of `starts`."""
    wanted = np.array([name.startswith(starts) for name in table.names], dtype=bool)
    rows = table.rows_of(*kinds)
    return rows[wanted[table.name[rows]]]


def _ranks(told: object) -> tuple[int, ...]:
    """`"[0, 1, 2]"` or `[0, 1, 2]` as ranks; none where the list was cut (`"[0, 1, ...]"`)."""
    if isinstance(told, str):
        words = [word.strip() for word in told.strip().strip("[]()").split(",")]
        if all(word.isdecimal() and len(word) < 10 for word in words):
            return tuple(int(word) for word in words)
        return ()
    if isinstance(told, list) and all(isinstance(rank, int) and rank >= 0 for rank in told):
        return tuple(told)
    return ()


def _size_from_elements(operation: str, arguments: Arguments) -> int | None:
    """Bytes by the convention of nccl-tests: all_gather and gather count what comes out, all others what goes in."""
    each = element_bytes(loosely(arguments.dtype, str, ""))
    if each is None:
        return None
    told = arguments.out_elements if operation in {"all_gather", "gather"} else arguments.in_elements
    elements = loosely(told, int, -1)
    return elements * each if 0 <= elements < 2**50 else None


def _size_from_inputs(operation: str, arguments: Arguments, members: int) -> int | None:
    """Bytes from the shapes of the inputs; None where shapes were not recorded or the group's size is needed."""
    shapes = loosely(arguments.input_dims, list[Any], [])
    types = loosely(arguments.input_type, list[Any], [])
    total = 0
    for shape, kind in zip(shapes, types, strict=False):
        each = element_bytes(kind) if isinstance(kind, str) else None
        if each is None or not isinstance(shape, list) or not shape:
            continue
        if not all(isinstance(extent, int) and 0 <= extent < 2**50 for extent in shape):
            return None
        total += math.prod(shape) * each
    if not 0 < total < 2**62:
        return None
    if operation in {"all_gather", "gather"}:
        return total * members if members else None
    return total
