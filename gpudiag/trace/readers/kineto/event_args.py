"""Decode the arguments of events: details of collectives, and the CUDA event that each wait waits for.

Since 2.2, PyTorch writes a collective's operation, group and size on its kernel. Earlier versions write them on the
host operator `record_param_comms` around the kernel's launch. Still earlier versions write only a range such as
`nccl:all_reduce` with the shapes of its inputs. Waits are `cuda_sync` events, written if `enable_cuda_sync_events` is
set. Since CUDA 13, these events name only the waiting stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import (
    NO_CORRELATION,
    NO_NUMBER,
    CollectiveCall,
    EventKind,
    EventTable,
    EventWaits,
    ProcessGroup,
    Role,
)
from gpudiag.model.quantities import MOST_RANKS
from gpudiag.trace.readers.kineto.header import is_present, loosely
from gpudiag.trace.readers.names import UNKNOWN, events_named, kernel_operation, normal_operation

#: Beginnings of names of host ranges that span a collective on the host.
HOST_COLLECTIVES = ("gloo:", "mpi:", "ucc:")
#: Beginnings of names of host ranges that span only the enqueue of a collective on a device.
_HOST_ENQUEUE = ("nccl:", "record_param_comms")
#: To find the range around a launch, at most this many earlier ranges of its thread are examined, the last one first.
#: Ranges nest, e.g. `record_param_comms` in `nccl:coalesced`.
_MAX_NESTING = 8
_NOTHING = msgspec.Raw(b"")
_SIZED_BY_OUTPUT = {"all_gather", "gather"}
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "complexhalf": 4, "uint16": 2, "uint32": 4, "uint64": 8,
    "long int": 8, "long long": 8, "unsigned char": 1, "signed char": 1, "short int": 2,
    "c10::half": 2, "c10::bfloat16": 2, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip


class _CollectiveArguments(msgspec.Struct, gc=False):
    """`args` of a communication event, undecoded because their types differ between versions."""

    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_NOTHING)
    in_elements: msgspec.Raw = msgspec.field(name="In msg nelems", default=_NOTHING)
    out_elements: msgspec.Raw = msgspec.field(name="Out msg nelems", default=_NOTHING)
    dtype: msgspec.Raw = _NOTHING
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=_NOTHING)
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_NOTHING)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=_NOTHING)
    sequence: msgspec.Raw = msgspec.field(name="Seq", default=_NOTHING)
    source: msgspec.Raw = msgspec.field(name="Src Rank", default=_NOTHING)
    destination: msgspec.Raw = msgspec.field(name="Dst Rank", default=_NOTHING)
    description: msgspec.Raw = msgspec.field(name="Process Group Description", default=_NOTHING)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    blocks_per_sm: msgspec.Raw = msgspec.field(name="blocks per SM", default=_NOTHING)


class CollectiveFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a collective from one event's arguments; "", (), None or 0 if unknown.

    Attributes:
        word: the profiler's word for the operation.
        group: process group.
        ranks: global ranks of the group; empty if unknown or cut short.
        sequence: number of the collective among the group's collectives.
        peer: global rank of the other end of a send or receive.
        description: description of the process group.
        members: number of ranks in the group.
        in_bytes: size of this rank's input, from the number of elements.
        out_bytes: size of this rank's output, from the number of elements.
        shaped_bytes: size of this rank's input, from the shapes of the inputs.
        blocks_per_sm: number of the kernel's blocks divided by the number of the device's multiprocessors.
    """

    word: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    sequence: int | None = None
    peer: int | None = None
    description: str = ""
    members: int = 0
    in_bytes: int | None = None
    out_bytes: int | None = None
    shaped_bytes: int | None = None
    blocks_per_sm: float | None = None

    def size_as(self, operation: str) -> int | None:
        """Return the size as nccl-tests counts it: the output of all_gather and gather, else the input.

        If only shapes of inputs are known, the output is the input times the number of ranks. None if unknown.
        """
        if operation not in _SIZED_BY_OUTPUT:
            return self.shaped_bytes if self.in_bytes is None else self.in_bytes
        if self.out_bytes is None and self.shaped_bytes is not None and self.members:
            return self.shaped_bytes * self.members
        return self.out_bytes


def describes_collective(name: str) -> bool:
    """Return whether the arguments of an event of this name may describe a collective."""
    return name.startswith((*HOST_COLLECTIVES, *_HOST_ENQUEUE)) or kernel_operation(name) is not None


def collective_facts(raw: msgspec.Raw) -> CollectiveFacts:
    """Decode the arguments of a communication event."""
    arguments = loosely(raw, _CollectiveArguments, _CollectiveArguments())
    ranks = _parse_ranks(loosely(arguments.group_ranks, Any, None))
    sequence = loosely(arguments.sequence, int, -1)
    # A send states only its destination, a receive only its source.
    peer = max(loosely(arguments.source, int, -1), loosely(arguments.destination, int, -1))
    members = loosely(arguments.group_size, int, 0)
    bytes_each = element_bytes(loosely(arguments.dtype, str, ""))
    blocks = loosely(arguments.blocks_per_sm, float, 0.0)
    return CollectiveFacts(
        word=loosely(arguments.collective, str, ""),
        group=str(loosely(arguments.group, str | int, "")),
        ranks=ranks,
        sequence=sequence if 0 <= sequence < 2**63 else None,
        peer=peer if 0 <= peer < MOST_RANKS else None,
        description=loosely(arguments.description, str, ""),
        members=len(ranks) or (members if 0 < members <= MOST_RANKS else 0),
        in_bytes=_total_bytes(arguments.in_elements, bytes_each),
        out_bytes=_total_bytes(arguments.out_elements, bytes_each),
        shaped_bytes=_input_bytes(arguments),
        blocks_per_sm=blocks if 0 < blocks < math.inf else None,
    )


def collective_calls(
    table: EventTable, facts: Mapping[int, CollectiveFacts], groups: Mapping[str, ProcessGroup]
) -> tuple[CollectiveCall, ...]:
    """Return one call for each communication kernel and for each collective on the host, in order of row.

    `facts` maps rows of communication events to facts in their arguments. `groups` has the header's process groups.
    """
    on_host = _rows_starting(table, HOST_COLLECTIVES, EventKind.ANNOTATION).tolist()
    calls = [_call(row, normal_operation(table.name_of(row)), facts.get(row), groups) for row in on_host]
    kernels = np.flatnonzero((table.kind == EventKind.KERNEL) & (table.role == Role.COMMUNICATION)).tolist()
    # PyTorch before 2.2 describes the collective on the host range around the kernel's launch.
    undescribed = [row for row in kernels if row not in facts or not facts[row].word]
    launches = _launches(table, undescribed) if undescribed else {}
    ranges = _enqueue_ranges(table) if launches else {}
    for row in kernels:
        operation, details = kernel_operation(table.name_of(row)), facts.get(row)
        blocks_per_sm = details.blocks_per_sm if details else None
        if row in launches and (host := _enclosing_range(table, facts, ranges, launches[row])) is not None:
            details = facts.get(host)
            if details is None or not details.word:
                details = _coalesced(table, facts, ranges, host) or details
            operation = normal_operation(table.name_of(host)) or operation
        calls.append(_call(row, operation, details, groups, blocks_per_sm))
    return tuple(sorted(calls, key=lambda call: call.row))


def all_groups(groups: Mapping[str, ProcessGroup], facts: Iterable[CollectiveFacts]) -> dict[str, ProcessGroup]:
    """Return the header's process groups, and the groups that only events describe."""
    known = dict(groups)
    for fact in facts:
        if fact.group and fact.ranks and fact.group not in known:
            known[fact.group] = ProcessGroup(fact.ranks, "" if fact.description == "undefined" else fact.description)
    return known


def _call(
    row: int,
    by_name: str | None,
    details: CollectiveFacts | None,
    groups: Mapping[str, ProcessGroup],
    blocks_per_sm: float | None = None,
) -> CollectiveCall:
    """Return the call in `row`.

    Args:
        row: row of the kernel or host event.
        by_name: the operation that the event's name states; None or `UNKNOWN` if it states none.
        details: facts in the event's arguments; None if it has none.
        groups: the header's process groups. If there is only one group, calls that state no group belong to it.
        blocks_per_sm: the kernel's blocks per multiprocessor; 1 or more occupy the whole device.
    """
    details = details or CollectiveFacts()
    # Arguments are more precise than a kernel's name (SendRecv may be all_to_all), if they are known (not "coalesced").
    known_by_name = None if by_name == UNKNOWN else by_name
    operation = normal_operation(details.word) or known_by_name or details.word or UNKNOWN
    only_group = next(iter(groups)) if len(groups) == 1 else ""
    group = details.group or only_group
    return CollectiveCall(
        row=row,
        operation=operation,
        group=group,
        group_ranks=details.ranks or (groups[group].ranks if group in groups else ()),
        size_bytes=details.size_as(operation),
        sequence=details.sequence,
        peer=details.peer,
        processor_share=None if blocks_per_sm is None else min(blocks_per_sm, 1.0),
    )


def _launches(table: EventTable, kernels: list[int]) -> dict[int, int]:
    """Return row of a kernel → row of its launch, if the launch was recorded."""
    calls = np.flatnonzero((table.kind == EventKind.RUNTIME) & (table.correlation != NO_CORRELATION))
    wanted = table.correlation[kernels]
    calls = calls[np.isin(table.correlation[calls], wanted)]
    by_correlation = dict(zip(table.correlation[calls].tolist(), calls.tolist(), strict=True))
    pairs = zip(kernels, wanted.tolist(), strict=True)
    return {kernel: by_correlation[correlation] for kernel, correlation in pairs if correlation in by_correlation}


def _enqueue_ranges(table: EventTable) -> dict[int, NDArray[np.intp]]:
    """Return thread → rows of its ranges that enqueue collectives."""
    rows = _rows_starting(table, _HOST_ENQUEUE, EventKind.ANNOTATION, EventKind.OPERATOR)
    threads = table.thread[rows]
    return {thread: rows[threads == thread] for thread in set(threads.tolist())}


def _enclosing_range(
    table: EventTable, facts: Mapping[int, CollectiveFacts], ranges: dict[int, NDArray[np.intp]], launch: int
) -> int | None:
    """Return the row of the innermost range that states an operation and encloses a launch (row `launch`).

    If none states an operation, return the innermost enclosing range; None if no range of the thread encloses it.
    `facts` is as in `collective_calls`, and `ranges` is the result of `_enqueue_ranges`.
    """
    rows = ranges.get(int(table.thread[launch]))
    if rows is None:
        return None
    innermost: int | None = None
    position = int(np.searchsorted(rows, launch))  # rows are in order of start
    earlier: list[int] = rows[max(0, position - _MAX_NESTING) : position].tolist()
    for row in reversed(earlier):
        if table.end_ns[row] >= table.start_ns[launch]:
            if row in facts and facts[row].word:
                return row
            innermost = row if innermost is None else innermost
    return innermost


def _coalesced(
    table: EventTable, facts: Mapping[int, CollectiveFacts], ranges: dict[int, NDArray[np.intp]], host: int
) -> CollectiveFacts | None:
    """Return the facts about the messages of one kernel, with their total size; None unless all have the same peer.

    PyTorch records each message before the range `nccl:coalesced` (row `host`), in which the kernel is launched.
    The other arguments are as in `_enclosing_range`.
    """
    rows = ranges[int(table.thread[host])]
    messages: list[CollectiveFacts] = []
    for row in reversed(rows[: int(np.searchsorted(rows, host))].tolist()):
        known = facts.get(row)
        if known is None or normal_operation(known.word) not in {"send", "recv"}:
            break
        messages.append(known)
    peers = {(message.group, message.peer) for message in messages}
    if len(peers) != 1:
        return None
    words = {message.word for message in messages}
    sizes = [message.in_bytes for message in messages if message.in_bytes is not None]
    whole = sum(sizes) if len(sizes) == len(messages) else None
    return msgspec.structs.replace(messages[0], word=words.pop() if len(words) == 1 else "send_recv", in_bytes=whole)


def _rows_starting(table: EventTable, starts: tuple[str, ...], *kinds: EventKind) -> NDArray[np.intp]:
    """Return the rows of these kinds whose names start with one of `starts`."""
    rows = table.rows_of(*kinds)
    starting: NDArray[np.intp] = rows[events_named(table, lambda name: name.startswith(starts))[rows]]
    return starting


def _parse_ranks(value: object) -> tuple[int, ...]:
    """Return the ranks in `"[0, 1, 2]"` or `[0, 1, 2]`; () if the list was cut (`"[0, 1, ...]"`)."""
    if isinstance(value, str):
        words = [word.strip() for word in value.strip().strip("[]()").split(",")]
        value = [int(word) for word in words] if all(word.isdecimal() and len(word) < 10 for word in words) else None
    if isinstance(value, list) and all(isinstance(rank, int) and 0 <= rank < MOST_RANKS for rank in value):
        return tuple(value)
    return ()


def _total_bytes(elements: msgspec.Raw, bytes_each: int | None) -> int | None:
    count = int(loosely(elements, int, -1))
    return count * bytes_each if bytes_each is not None and 0 <= count < 2**50 else None


def _input_bytes(arguments: _CollectiveArguments) -> int | None:
    """Return the bytes of the input tensors; None if there are none, or shapes are implausible or were not recorded.

    Inputs without a shape or a known type are no tensors, and do not count.
    """
    if not is_present(arguments.input_dims):
        return None
    shapes: list[Any] = loosely(arguments.input_dims, list[Any], [])
    types: list[Any] = loosely(arguments.input_type, list[Any], [])
    total = 0
    for shape, dtype in zip(shapes, types, strict=False):
        bytes_each = element_bytes(dtype) if isinstance(dtype, str) else None
        if bytes_each is None or not isinstance(shape, list) or not shape:
            continue
        if not all(isinstance(extent, int) and 0 <= extent < 2**50 for extent in shape):
            return None
        total += math.prod(shape) * bytes_each
    return int(total) if 0 < total < 2**62 else None


def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element by PyTorch's name of the type; None for an unknown name."""
    lowered = dtype.strip().lower()
    if lowered.startswith(("float8", "c10::float8")):
        return 1
    return _ELEMENT_BYTES.get(lowered)


_RECORD_CALL = re.compile(r"(?:cuda|hip|cu)EventRecord")


class _SyncArguments(msgspec.Struct, gc=False):
    wait_on_cuda_event_record_corr_id: msgspec.Raw = _NOTHING
    wait_on_stream: msgspec.Raw = _NOTHING
    wait_on_cuda_event_id: msgspec.Raw = _NOTHING


class SyncFacts(NamedTuple):
    """Facts from a synchronization event's arguments; `NO_NUMBER` if unknown.

    `record` is the correlation of the call that recorded the CUDA event in `stream`; `event` is the event's number.
    """

    record: int
    stream: int
    event: int


def sync_facts(raw: msgspec.Raw) -> SyncFacts:
    """Decode the arguments of a synchronization event."""
    fields = msgspec.structs.astuple(loosely(raw, _SyncArguments, _SyncArguments()))
    numbers = (loosely(field, int, NO_NUMBER) for field in fields)
    return SyncFacts(*(number if 0 <= number < 2**63 else NO_NUMBER for number in numbers))


def event_waits(table: EventTable, facts: Mapping[int, SyncFacts]) -> EventWaits:
    """Return the waits whose call was recorded, sorted by call. `facts` maps rows of synchronization events to facts.

    Profilers keep only the last call that recorded a CUDA event. If this call comes after the wait, the wait was for an
    earlier, unknown call and stream. A host call is a wait only if it synchronizes, unlike `cudaEventQuery`.
    """
    rows = np.fromiter(facts, np.int64, len(facts))
    record, stream, event = np.array(list(facts.values()), np.int64).reshape(-1, 3).T
    calls = table.rows_of(EventKind.RUNTIME)
    recording = calls[events_named(table, _RECORD_CALL.match)[calls]]
    call = table.rows_with(table.correlation[rows], calls)
    recorded_by = table.rows_with(record, recording)
    of_stream = events_named(table, lambda name: name.startswith("Stream Sync"))[rows]
    by_stream = events_named(table, lambda name: name.startswith("Stream Wait Event"))[rows]
    by_host = events_named(table, lambda name: name.startswith("Event Sync"))[rows] | of_stream
    # The host waits for all earlier work of the stream, as if the waiting call itself had recorded an event in it. The
    # `thread` of a synchronization event is the stream.
    recorded_by[of_stream], stream[of_stream] = call[of_stream], table.thread[rows[of_stream]]
    too_late = ~of_stream & (recorded_by != NO_NUMBER) & (table.start_ns[recorded_by] >= table.start_ns[call])
    recorded_by[too_late] = stream[too_late] = NO_NUMBER
    is_wait = (call != NO_NUMBER) & (by_stream | by_host & (table.role[call] == Role.SYNCHRONIZATION))
    kept = np.flatnonzero(is_wait)[np.argsort(call[is_wait], kind="stable")]
    return EventWaits(
        call=call[kept],
        device=table.device[rows[kept]].astype(np.int64),
        stream=np.where(by_stream, table.thread[rows], NO_NUMBER)[kept],
        record=recorded_by[kept],
        recorded_stream=stream[kept],
        event=event[kept],
    )
