"""What was communicated: operation, group and size of each communication event, from wherever the trace has it.

PyTorch since 2.2 writes them on the kernel. Before, they stand on the host operator `record_param_comms` that
encloses the kernel's launch; older still, only a range such as `nccl:all_reduce` with the shapes of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import NO_CORRELATION, CollectiveCall, EventKind, EventTable, Role
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace.readers.kineto.collective_names import (
    HOST_COLLECTIVES,
    UNKNOWN,
    element_bytes,
    kernel_operation,
    normal_operation,
)
from gpudiag.trace.readers.kineto.header import is_told, loosely

#: The host range of a collective on a device: it spans the enqueuing only.
_HOST_ENQUEUE = ("nccl:", "record_param_comms")
#: Ranges nest at most this deep around a launch: `record_param_comms` in `nccl:coalesced` in `nccl:all_to_all`.
_NESTED = 8
_NOTHING = msgspec.Raw(b"")
_COUNTED_OUT = {"all_gather", "gather"}


class _Arguments(msgspec.Struct, gc=False):
    """`args` of a communication event; each stays undecoded, as forms differ."""

    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_NOTHING)
    in_elements: msgspec.Raw = msgspec.field(name="In msg nelems", default=_NOTHING)
    out_elements: msgspec.Raw = msgspec.field(name="Out msg nelems", default=_NOTHING)
    dtype: msgspec.Raw = _NOTHING
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=_NOTHING)
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_NOTHING)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=_NOTHING)
    sequence: msgspec.Raw = msgspec.field(name="Seq", default=_NOTHING)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    blocks_per_sm: msgspec.Raw = msgspec.field(name="blocks per SM", default=_NOTHING)


class Communicated(msgspec.Struct, frozen=True, kw_only=True):
    """What one event's arguments tell of a collective.

    Attributes:
        word: what the profiler calls the operation, or "".
        group: process group, or "".
        ranks: global ranks of the group; empty where not told, or told in part only.
        sequence: the group's sequence number, or None.
        members: ranks in the group, or 0.
        in_bytes: what this rank puts in, by the count of elements; None where not told.
        out_bytes: what this rank gets out.
        shaped_bytes: what this rank puts in, by the shapes of the inputs.
        blocks_per_sm: the kernel's blocks over the device's multiprocessors; None where not told.
    """

    word: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    sequence: int | None = None
    members: int = 0
    in_bytes: int | None = None
    out_bytes: int | None = None
    shaped_bytes: int | None = None
    blocks_per_sm: float | None = None

    def size_as(self, operation: str) -> int | None:
        """Bytes in nccl-tests' sense: all_gather and gather count what comes out, all others what goes in."""
        if operation not in _COUNTED_OUT:
            return self.shaped_bytes if self.in_bytes is None else self.in_bytes
        if self.out_bytes is None and self.shaped_bytes is not None and self.members:
            return self.shaped_bytes * self.members
        return self.out_bytes


def may_tell(name: str) -> bool:
    """Whether the arguments of an event of this name are worth keeping."""
    return name.startswith((*HOST_COLLECTIVES, *_HOST_ENQUEUE)) or kernel_operation(name) is not None


def communicated(raw: msgspec.Raw) -> Communicated:
    """Decode the arguments of a communication event."""
    arguments = loosely(raw, _Arguments, _Arguments())
    ranks = _ranks(loosely(arguments.group_ranks, Any, None))
    sequence = loosely(arguments.sequence, int, -1)
    members = loosely(arguments.group_size, int, 0)
    each = element_bytes(loosely(arguments.dtype, str, ""))
    blocks = loosely(arguments.blocks_per_sm, float, 0.0)
    return Communicated(
        word=loosely(arguments.collective, str, ""),
        group=str(loosely(arguments.group, str | int, "")),
        ranks=ranks,
        sequence=sequence if 0 <= sequence < 2**63 else None,
        members=len(ranks) or (members if 0 < members <= MOST_RANKS else 0),
        in_bytes=_bytes_of(arguments.in_elements, each),
        out_bytes=_bytes_of(arguments.out_elements, each),
        shaped_bytes=_bytes_of_inputs(arguments),
        blocks_per_sm=blocks if 0 < blocks < math.inf else None,
    )


def collective_calls(
    table: EventTable, told: Mapping[int, Communicated], groups: dict[str, tuple[int, ...]]
) -> tuple[CollectiveCall, ...]:
    """One call for each communication kernel; or, without device work, for each collective on the host.

    Args:
        table: the events.
        told: by row, what communication events' arguments tell.
        groups: global ranks by process group, from the header.
    """
    on_host = _rows_named(table, HOST_COLLECTIVES, EventKind.ANNOTATION).tolist()
    calls = [_call(row, normal_operation(table.name_of(row)), told.get(row), groups) for row in on_host]
    rows = np.flatnonzero((table.kind == EventKind.KERNEL) & (table.role == Role.COMMUNICATION)).tolist()
    mute = [row for row in rows if row not in told or not told[row].word]
    launches = _launches(table, mute) if mute else {}
    records = _records(table) if launches else {}
    for row in rows:
        operation, details = kernel_operation(table.name_of(row)), told.get(row)
        if row in launches and (host := _enclosing(table, told, records, launches[row])) is not None:
            details = told.get(host)
            operation = normal_operation(table.name_of(host)) or operation
        own = told.get(row)
        calls.append(_call(row, operation, details, groups, blocks_per_sm=own.blocks_per_sm if own else None))
    return tuple(calls)


def _call(
    row: int,
    by_name: str | None,
    details: Communicated | None,
    groups: dict[str, tuple[int, ...]],
    blocks_per_sm: float | None = None,
) -> CollectiveCall:
    details = details or Communicated()
    # What a kernel is called says less than its arguments (SendRecv is a part of all_to_all), but more than a word of
    # theirs that names no operation ("coalesced").
    told_by_name = None if by_name == UNKNOWN else by_name
    operation = normal_operation(details.word) or told_by_name or details.word or UNKNOWN
    only_group = next(iter(groups)) if len(groups) == 1 else ""
    group = details.group or only_group
    return CollectiveCall(
        row=row,
        operation=operation,
        group=group,
        group_ranks=details.ranks or groups.get(group, ()),
        size_bytes=details.size_as(operation),
        sequence=details.sequence,
        processor_share=None if blocks_per_sm is None else min(blocks_per_sm, 1.0),
    )


def _launches(table: EventTable, kernels: list[int]) -> dict[int, int]:
    """The row of the call that launched each of these kernels, by the kernel's row; without those not captured."""
    calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & (table.correlation != NO_CORRELATION))
    wanted = table.correlation[kernels]
    calls = calls[np.isin(table.correlation[calls], wanted)]
    by_correlation = dict(zip(table.correlation[calls].tolist(), calls.tolist(), strict=True))
    pairs = zip(kernels, wanted.tolist(), strict=True)
    return {kernel: by_correlation[correlation] for kernel, correlation in pairs if correlation in by_correlation}


def _records(table: EventTable) -> dict[int, NDArray[np.intp]]:
    """Rows of the host's collective ranges, by thread."""
    rows = _rows_named(table, _HOST_ENQUEUE, EventKind.ANNOTATION, EventKind.OPERATOR)
    threads = table.thread[rows]
    return {thread: rows[threads == thread] for thread in set(threads.tolist())}


def _enclosing(
    table: EventTable, told: Mapping[int, Communicated], records: dict[int, NDArray[np.intp]], launch: int
) -> int | None:
    """The host range around a launch: the innermost that names the operation, else the innermost."""
    rows = records.get(int(table.thread[launch]))
    if rows is None:
        return None
    innermost: int | None = None
    position = int(np.searchsorted(rows, launch))  # rows are in order of start
    earlier: list[int] = rows[max(0, position - _NESTED) : position].tolist()
    for row in reversed(earlier):
        if table.end_ns[row] >= table.start_ns[launch]:
            if row in told and told[row].word:
                return row
            innermost = row if innermost is None else innermost
    return innermost


def _rows_named(table: EventTable, starts: tuple[str, ...], *kinds: EventKind) -> NDArray[np.intp]:
    """Rows of these kinds whose names start with one of `starts`."""
    wanted = np.array([name.startswith(starts) for name in table.names], dtype=bool)
    rows = table.rows_of(*kinds)
    named: NDArray[np.intp] = rows[wanted[table.name[rows]]]
    return named


def _ranks(told: object) -> tuple[int, ...]:
    """`"[0, 1, 2]"` or `[0, 1, 2]` as ranks; none where the list was cut (`"[0, 1, ...]"`)."""
    if isinstance(told, str):
        words = [word.strip() for word in told.strip().strip("[]()").split(",")]
        told = [int(word) for word in words] if all(word.isdecimal() and len(word) < 10 for word in words) else None
    if isinstance(told, list) and all(isinstance(rank, int) and 0 <= rank < MOST_RANKS for rank in told):
        return tuple(told)
    return ()


def _bytes_of(elements: msgspec.Raw, each: int | None) -> int | None:
    count = int(loosely(elements, int, -1))
    return count * each if each is not None and 0 <= count < 2**50 else None


def _bytes_of_inputs(arguments: _Arguments) -> int | None:
    """Bytes of the input tensors; None where shapes were not recorded."""
    if not is_told(arguments.input_dims):
        return None
    shapes: list[Any] = loosely(arguments.input_dims, list[Any], [])
    types: list[Any] = loosely(arguments.input_type, list[Any], [])
    total = 0
    for shape, kind in zip(shapes, types, strict=False):
        each = element_bytes(kind) if isinstance(kind, str) else None
        if each is None or not isinstance(shape, list) or not shape:
            continue
        if not all(isinstance(extent, int) and 0 <= extent < 2**50 for extent in shape):
            return None
        total += math.prod(shape) * each
    return int(total) if 0 < total < 2**62 else None
