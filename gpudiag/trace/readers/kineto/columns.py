"""Build the columns of an event table from batches of decoded events."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.errors import TooLargeError
from gpudiag.model.event import (
    DEVICE_WORK,
    HOST,
    NO_CORRELATION,
    NO_SIZE,
    EventKind,
    EventTable,
    EventWaits,
    ModuleWork,
    OperatorWork,
)
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.readers.kineto.event_args import (
    CollectiveFacts,
    SyncFacts,
    collective_facts,
    describes_collective,
    event_waits,
    sync_facts,
)
from gpudiag.trace.readers.kineto.event_json import Arguments, AutogradArguments, Event, Repairs, decode_arguments
from gpudiag.trace.readers.kineto.kinds_and_times import (
    Times,
    called_accelerator,
    is_known,
    is_profiler_span,
    kind_of,
    kind_of_operator,
    operators_accelerator,
    unread_accelerator,
)
from gpudiag.trace.readers.kineto.roles import roles_of, roles_with_hooks
from gpudiag.trace.readers.names import roles_without_idle_launches
from gpudiag.trace.unpack import free_memory_bytes

if TYPE_CHECKING:
    from gpudiag.trace.readers.kineto.operator_work import WorkReader

_T = TypeVar("_T")
#: Codes of categories that are not read, and of the spans in which the profiler recorded.
_SKIP = 255
_PROFILER = 254
_MISSING = -1
#: Bytes of memory per row: 50 in the columns, 150 more while the columns are sorted, and a margin.
_MEMORY_PER_ROW = 256
#: Number of first operators of PyTorch that are searched for shapes. If shapes were recorded, one of them has shapes.
_SHAPES_WITHIN = 500
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|-?\d{1,19}(?!\d)")


def _kinds(*kinds: EventKind) -> NDArray[np.bool_]:
    flags = np.zeros(256, dtype=bool)
    flags[list(kinds)] = True
    return flags


_ON_DEVICE = _kinds(
    EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC
)
_CORRELATED = _kinds(EventKind.RUNTIME, EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_SYNC)
#: Kinds of events whose numeric arguments are read.
_NUMBERED = _ON_DEVICE | _CORRELATED


class _KindCodes(dict[str, int]):
    """Category → code: its `EventKind`, `_SKIP` or `_PROFILER`."""

    def __missing__(self, category: str) -> int:
        kind = kind_of(category)
        other = _PROFILER if is_profiler_span(category) else _SKIP
        self[category] = code = other if kind is None else int(kind)
        return code


class _NameIndex(dict[str, int]):
    """Name → index, and the properties of events that follow from the name."""

    def __init__(self) -> None:
        super().__init__()
        self.operator_kind = bytearray()
        self.describes_collective = bytearray()

    def __missing__(self, name: str) -> int:
        self[name] = index = len(self)
        self.operator_kind.append(kind_of_operator(name))
        self.describes_collective.append(describes_collective(name))
        return index


class _Batch(NamedTuple):
    """Raw columns of a batch.

    The columns up to `thread` have all events, `correlation` has only events of kinds in `_NUMBERED`, and the columns
    after it have only events of kinds in `_ON_DEVICE`.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start_us: NDArray[np.float64]
    length_us: NDArray[np.float64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    stream: NDArray[np.int64]
    device: NDArray[np.int64]
    process: NDArray[np.int64]
    size_bytes: NDArray[np.int64]


class Finished(NamedTuple):
    """The event table, facts about its rows (`collectives`: row → facts), and its first start on the original clock."""

    table: EventTable
    collectives: dict[int, CollectiveFacts]
    event_waits: EventWaits
    modules: ModuleWork | None
    operator_work: OperatorWork | None
    first_ns: int


class Columns:
    """Collect events in file order, batch by batch, and build the table.

    Args:
        shown: the file's name in messages.
        repairs: counts arguments that are left out.
    """

    def __init__(self, shown: str, repairs: Repairs) -> None:
        self._shown = shown
        self._repairs = repairs
        self._codes = _KindCodes()
        self._names = _NameIndex()
        self._batches: list[_Batch] = []
        self._collectives: dict[int, CollectiveFacts] = {}
        self._syncs: dict[int, SyncFacts] = {}
        #: Arguments of operators, which are decoded at the end, and only if there are marks of modules.
        self._operator_arguments: list[bytes] = []
        self._work: WorkReader | None = None
        self._without_shapes = 0
        self._rows = 0
        #: (Start, duration) in µs of the spans in which the profiler recorded.
        self._recordings: list[tuple[float, float]] = []
        free = free_memory_bytes()
        self._max_rows = 2**40 if free is None else free // _MEMORY_PER_ROW

    def add(self, events: list[Event]) -> None:
        """Add the events of a batch that have known categories, and store the spans in which the profiler recorded.

        Raises:
            TooLargeError: the events do not fit into the free memory.
        """
        code_of = self._codes
        codes = np.frombuffer(bytes([code_of[event.cat] for event in events]), np.uint8)
        if len(codes) and codes.max() >= _PROFILER:  # some events are the profiler's spans, or are not read
            for row in np.flatnonzero(codes == _PROFILER).tolist():
                self._recordings.append((events[row].ts, events[row].dur))
            known = codes < _PROFILER
            events = list(_chosen(events, known))
            codes = codes[known]
        if events:
            self._batches.append(self._batch(events, codes))
            self._rows += len(events)
            if self._rows > self._max_rows:
                raise TooLargeError(
                    f"{self._shown} has more than the {self._max_rows} events that fit the free memory",
                    "Close other programs or use a larger machine; else record fewer steps.",
                )

    def _batch(self, events: list[Event], kind: NDArray[np.uint8]) -> _Batch:
        """Return the columns of a batch with kinds `kind`; store facts about its collectives, waits and operators."""
        count = len(events)
        index_of = self._names
        name = np.fromiter([index_of[event.name] for event in events], np.int32, count)
        describing = np.frombuffer(bytes(self._names.describes_collective), np.bool_)[name]
        # Facts are stored by the event's index among all events; `self._rows` events precede this batch.
        for row in np.flatnonzero(describing).tolist():
            self._collectives[self._rows + row] = collective_facts(events[row].args)
        for row in np.flatnonzero(kind == int(EventKind.DEVICE_SYNC)).tolist():
            self._syncs[self._rows + row] = sync_facts(events[row].args)
        if raw := [event.args for event in _chosen(events, kind == int(EventKind.OPERATOR))]:
            self._operator_arguments.append(b",".join(raw))
            self._add_work(events, name)
        numbered, on_device = _NUMBERED[kind], _ON_DEVICE[kind]
        raw = [event.args for event in _chosen(events, numbered)]
        arguments = decode_arguments(raw, Arguments, self._repairs)
        of_device = list(_chosen(arguments, on_device[numbered]))
        return _Batch(
            kind=kind,
            name=name,
            start_us=np.fromiter([event.ts for event in events], np.float64, count),
            length_us=np.fromiter([event.dur for event in events], np.float64, count),
            thread=_integers([event.tid for event in events]),
            correlation=_integers([argument.correlation for argument in arguments]),
            stream=_integers([argument.stream for argument in of_device]),
            device=_integers([argument.device for argument in of_device]),
            process=_integers([event.pid for event in _chosen(events, on_device)]),
            size_bytes=_integers([argument.bytes for argument in of_device]),
        )

    def _add_work(self, events: list[Event], name: NDArray[np.int32]) -> None:
        """Add the work of the operators among `events`, once one of PyTorch's first operators had shapes.

        `name` has the index of each event's name.
        """
        if self._work is None and self._without_shapes < _SHAPES_WITHIN:
            for event in events:
                if event.name.startswith("aten::"):
                    if b'"Input Dims"' in bytes(event.args):
                        from gpudiag.trace.readers.kineto.operator_work import WorkReader

                        self._work = WorkReader()
                        break
                    self._without_shapes += 1
        if self._work is not None:
            self._work.add(self._rows, events, name, self._names)

    def unknown_categories(self) -> list[str]:
        """Return the printable names of categories that are neither read nor left out on purpose."""
        return sorted(
            with_escapes(word)
            for word, code in self._codes.items()
            if code == _SKIP and word and not is_known(word) and not unread_accelerator(word)
        )

    def activity_not_read(self) -> list[str]:
        """Return the accelerators whose activity was recorded but not read."""
        return sorted({device for word in self._codes if (device := unread_accelerator(word)) is not None})

    def unread_devices(self, table: EventTable) -> tuple[str, ...]:
        """Return the accelerators whose recorded activity or calls no reader supports.

        Calls and operators count only if no device activity was read.
        """
        devices: set[str | None] = {*self.activity_not_read()}
        if not len(table.rows_of(*DEVICE_WORK)):
            devices |= {called_accelerator(category) for category in self._codes}
            devices |= {operators_accelerator(name) for name in table.names}
        return tuple(sorted(device for device in devices if device is not None))

    def finish(self, notes: list[str]) -> Finished | None:
        """Return all events, sorted; None if there are no events. Append descriptions of repairs to `notes`."""
        if not self._batches:
            return None
        batch = _Batch(*(np.concatenate(columns) for columns in zip(*self._batches, strict=True)))
        self._batches.clear()
        kind, name = batch.kind, batch.name
        times = Times.from_microseconds(batch.start_us, batch.length_us, self._recordings, notes)
        order = times.order
        if not len(order):
            return None
        operator = kind == int(EventKind.OPERATOR)
        thread, device, correlation, size_bytes = _valid_columns(batch)
        # By its name, an operator may be a range or a mark of a module instead.
        kind = np.where(operator, np.frombuffer(bytes(self._names.operator_kind), np.uint8)[name], kind)
        kind, name, names = kind[order], name[order], tuple(self._names)
        roles = roles_of(kind, name, names)
        table = EventTable(
            kind=kind,
            name=name,
            start_ns=times.start_ns,
            end_ns=times.end_ns,
            thread=thread[order],
            device=device[order],
            correlation=correlation[order],
            size_bytes=size_bytes[order],
            role=roles.role,
            direction=roles.direction,
            host_memory=roles.host_memory,
            names=names,
        )
        table = msgspec.structs.replace(table, role=roles_with_hooks(table))
        table = msgspec.structs.replace(table, role=roles_without_idle_launches(table))
        position = np.full(self._rows, -1, dtype=np.int64)  # index in the file → row; -1 for events that were left out
        position[order] = np.arange(len(order))
        return Finished(
            table=table,
            collectives=_by_position(self._collectives, position),
            event_waits=event_waits(table, _by_position(self._syncs, position)) if self._syncs else EventWaits(),
            modules=self._modules(table, position[operator]),
            operator_work=self._work.finish(position) if self._work is not None else None,
            first_ns=times.first_ns,
        )

    def _modules(self, table: EventTable, operator_rows: NDArray[np.int64]) -> ModuleWork | None:
        """Return the module for which each operator worked; None without marks of modules.

        `operator_rows` has the row of each operator in file order; -1 if the operator was left out.
        """
        if not (table.kind == int(EventKind.MODULE)).any():
            return None
        from gpudiag.trace.readers.kineto.modules import AutogradNodes, module_work

        raw = msgspec.json.decode(b"[%b]" % b",".join(self._operator_arguments), type=list[msgspec.Raw])
        arguments = decode_arguments(raw, AutogradArguments, self._repairs)
        sequence = _integers([argument.sequence for argument in arguments])
        thread = _integers([argument.forward_thread for argument in arguments])
        known = (sequence >= 0) & (operator_rows >= 0)
        return module_work(table, AutogradNodes(operator_rows[known], sequence[known], thread[known]))


def _chosen(items: list[_T], flags: NDArray[np.bool_]) -> Iterator[_T]:
    return compress(items, flags.tobytes())  # iterating bytes is twice as fast as iterating an array


def _valid_columns(batch: _Batch) -> tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Return (thread, device, correlation, size) of all events, with `EventTable`'s codes for invalid values."""
    on_device = _ON_DEVICE[batch.kind]
    thread = batch.thread
    thread[on_device] = np.where(batch.stream == _MISSING, thread[on_device], batch.stream)
    device = np.full(len(thread), HOST, np.int16)
    number = np.where(batch.device == _MISSING, batch.process, batch.device)  # Kineto writes the device as process too
    device[on_device] = np.where((number >= 0) & (number < 2**15), number, 0)  # if invalid, use the first device
    correlation = np.full(len(thread), NO_CORRELATION, np.int64)
    # CUPTI numbers correlations from 1; 0 means that there is none.
    correlation[_NUMBERED[batch.kind]] = np.where(batch.correlation > 0, batch.correlation, NO_CORRELATION)
    correlation[~_CORRELATED[batch.kind]] = NO_CORRELATION
    size_bytes = np.full(len(thread), NO_SIZE, np.int64)
    size_bytes[on_device] = np.where(batch.size_bytes >= 0, batch.size_bytes, NO_SIZE)
    return thread, device, correlation, size_bytes


def _by_position(facts: dict[int, _T], position: NDArray[np.int64]) -> dict[int, _T]:
    """Replace the keys of `facts` (indices in the file) by rows of the table. Facts of omitted events are dropped."""
    before = np.fromiter(facts, dtype=np.int64, count=len(facts))
    pairs = zip(position[before].tolist(), facts.values(), strict=True)
    return {row: fact for row, fact in pairs if row >= 0}


def _integers(values: list[int | str] | list[int | float | str]) -> NDArray[np.int64]:
    """Return a column of integers. Text such as `stream 7`, `0x7` or `5555` is replaced by its number."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = {value: _integer(value) for value in dict.fromkeys(values)}
        return np.fromiter(map(numbers.__getitem__, values), dtype=np.int64, count=len(values))


def _integer(value: float | str) -> int:
    """Return the number in a value.

    Text without a number becomes a number of at most -2**32, which no profiler writes. The first six bytes of the text,
    which fit int64, determine the number, so that threads whose texts differ in these bytes stay different.
    """
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else _MISSING
    elif isinstance(value, str):
        match = _NUMBER.search(value)
        if match is None:
            return -(2**32) - int.from_bytes(value.encode("utf-8", "replace")[:6], "big")
        value = int(match[0], 16 if "x" in match[0].lower() else 10)
    return value if -(2**63) <= value < 2**63 else _MISSING
