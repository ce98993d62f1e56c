"""Columns of events, built from batches of decoded ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import compress
from typing import NamedTuple, TypeVar

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
)
from gpudiag.model.sanitize import with_escapes
from gpudiag.trace.limits import free_memory_bytes
from gpudiag.trace.readers.kineto import categories
from gpudiag.trace.readers.kineto.collective_args import Communicated, communicated, may_tell
from gpudiag.trace.readers.kineto.event_json import Arguments, AutogradArguments, Event, Repairs, decode_arguments
from gpudiag.trace.readers.kineto.hooks import with_hooks
from gpudiag.trace.readers.kineto.modules import Autograd, module_work
from gpudiag.trace.readers.kineto.roles import roles_of
from gpudiag.trace.readers.kineto.sync_events import Awaited, awaited, event_waits
from gpudiag.trace.readers.kineto.times import Times
from gpudiag.trace.readers.launches import roles_without_idle_launches

_T = TypeVar("_T")
_SKIP = 255
_PROFILER = 254
_UNTOLD = -1
#: A row takes 50 bytes in its columns and three times that while they are put in order.
_MEMORY_PER_ROW = 256
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|-?\d{1,19}(?!\d)")


def _kinds(*kinds: EventKind) -> NDArray[np.bool_]:
    flags = np.zeros(256, dtype=bool)
    flags[list(kinds)] = True
    return flags


_ON_DEVICE = _kinds(
    EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC
)
_CORRELATED = _kinds(EventKind.RUNTIME, EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_SYNC)
#: Of these the arguments' numbers are asked for.
_NUMBERED = _ON_DEVICE | _CORRELATED


class _KindCodes(dict[str, int]):
    """The code of each category met: its `EventKind`, or why it is not one."""

    def __missing__(self, category: str) -> int:
        kind = categories.kind_of(category)
        other = _PROFILER if categories.is_profiler_span(category) else _SKIP
        self[category] = code = other if kind is None else int(kind)
        return code


class _Names(dict[str, int]):
    """The index of each name met, and what the name says of its events."""

    def __init__(self) -> None:
        super().__init__()
        self.as_operator = bytearray()
        self.may_tell = bytearray()

    def __missing__(self, name: str) -> int:
        self[name] = index = len(self)
        self.as_operator.append(categories.kind_of_operator(name))
        self.may_tell.append(may_tell(name))
        return index


class _Batch(NamedTuple):
    """Numbers as written: first of all events, `correlation` of those of `_NUMBERED`, what follows of device work."""

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
    """The table, what communication events told by row, waits for CUDA events, modules, and the first start in ns."""

    table: EventTable
    told: dict[int, Communicated]
    event_waits: EventWaits
    modules: ModuleWork | None
    first_ns: int


class Columns:
    """Takes events in file order, batch by batch, and makes the table.

    Args:
        shown: how to call the file in messages.
        repairs: arguments that were left out are counted here.
    """

    def __init__(self, shown: str, repairs: Repairs) -> None:
        self._shown = shown
        self._repairs = repairs
        self._codes = _KindCodes()
        self._names = _Names()
        self._batches: list[_Batch] = []
        self._told: dict[int, Communicated] = {}
        self._awaited: dict[int, Awaited] = {}
        #: Arguments of operators, as text: the end tells whether they are asked for; the backward pass may stand first.
        self._of_operators: list[bytes] = []
        self._rows = 0
        self._recordings: list[tuple[float, float]] = []
        free = free_memory_bytes()
        self._most_rows = 2**40 if free is None else free // _MEMORY_PER_ROW

    def add(self, events: list[Event]) -> None:
        """Take the events of known categories from a batch."""
        code_of = self._codes
        codes = np.frombuffer(bytes([code_of[event.cat] for event in events]), np.uint8)
        if len(codes) and codes.max() >= _PROFILER:
            for row in np.flatnonzero(codes == _PROFILER).tolist():
                self._recordings.append((events[row].ts, events[row].dur))
            known = codes < _PROFILER
            events = list(_chosen(events, known))
            codes = codes[known]
        if events:
            self._batches.append(self._batch(events, codes))
            self._rows += len(events)
            if self._rows > self._most_rows:
                raise TooLargeError(
                    f"{self._shown} has more than the {self._most_rows} events that fit the free memory",
                    "Close other programs or use a larger machine; else record fewer steps.",
                )

    def _batch(self, events: list[Event], kind: NDArray[np.uint8]) -> _Batch:
        count = len(events)
        index_of = self._names
        name = np.fromiter([index_of[event.name] for event in events], np.int32, count)
        tells = np.frombuffer(bytes(self._names.may_tell), np.bool_)[name]
        for row in np.flatnonzero(tells).tolist():
            self._told[self._rows + row] = communicated(events[row].args)
        for row in np.flatnonzero(kind == int(EventKind.DEVICE_SYNC)).tolist():
            self._awaited[self._rows + row] = awaited(events[row].args)
        if told := [event.args for event in _chosen(events, kind == int(EventKind.OPERATOR))]:
            self._of_operators.append(b",".join(told))
        numbered, on_device = _NUMBERED[kind], _ON_DEVICE[kind]
        told = [event.args for event in _chosen(events, numbered)]
        arguments = decode_arguments(told, Arguments, self._repairs)
        of_device = list(_chosen(arguments, on_device[numbered]))
        return _Batch(
            kind=kind,
            name=name,
            start_us=np.fromiter([event.ts for event in events], np.float64, count),
            length_us=np.fromiter([event.dur for event in events], np.float64, count),
            thread=_integers([event.tid for event in events]),
            correlation=_integers([own.correlation for own in arguments]),
            stream=_integers([own.stream for own in of_device]),
            device=_integers([own.device for own in of_device]),
            process=_integers([event.pid for event in _chosen(events, on_device)]),
            size_bytes=_integers([own.bytes for own in of_device]),
        )

    def unknown_categories(self) -> list[str]:
        """Categories met that are neither read nor left out on purpose, printable."""
        return sorted(
            with_escapes(word)
            for word, code in self._codes.items()
            if code == _SKIP and word and not categories.is_known(word) and not categories.unread_accelerator(word)
        )

    def activity_not_read(self) -> list[str]:
        """Return the accelerators whose activity was met and not read."""
        return sorted({device for word in self._codes if (device := categories.unread_accelerator(word)) is not None})

    def unread_devices(self, table: EventTable) -> tuple[str, ...]:
        """Return the accelerators that the recording has activity of, or calls to, and that no reader understands.

        Calls and operators say which accelerator is used; they count only where no device activity was read.
        """
        found: set[str | None] = {*self.activity_not_read()}
        if not len(table.rows_of(*DEVICE_WORK)):
            found |= {categories.called_accelerator(category) for category in self._codes}
            found |= {categories.operators_accelerator(name) for name in table.names}
        return tuple(sorted(device for device in found if device is not None))

    def finish(self, notes: list[str]) -> Finished | None:
        """All that was taken, in order; None without any events.

        Args:
            notes: what had to be repaired is appended here.
        """
        if not self._batches:
            return None
        batch = _Batch(*(np.concatenate(parts) for parts in zip(*self._batches, strict=True)))
        self._batches.clear()
        kind, name = batch.kind, batch.name
        times = Times.from_microseconds(batch.start_us, batch.length_us, self._recordings, notes)
        order = times.order
        if not len(order):
            return None
        operator = kind == int(EventKind.OPERATOR)
        thread, device, correlation, size_bytes = _settled(batch)
        kind = np.where(operator, np.frombuffer(bytes(self._names.as_operator), np.uint8)[name], kind)
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
        table = msgspec.structs.replace(table, role=with_hooks(table))
        table = msgspec.structs.replace(table, role=roles_without_idle_launches(table))
        position = np.full(self._rows, -1, dtype=np.int64)
        position[order] = np.arange(len(order))
        waits = event_waits(table, _in_order(self._awaited, position)) if self._awaited else EventWaits()
        modules = None
        if (table.kind == int(EventKind.MODULE)).any():
            raw = msgspec.json.decode(b"[%b]" % b",".join(self._of_operators), type=list[msgspec.Raw])
            told = decode_arguments(raw, AutogradArguments, self._repairs)
            modules = module_work(table, _autograd(told, position[operator]))
        return Finished(table, _in_order(self._told, position), waits, modules, times.first_ns)


def _chosen(items: list[_T], flags: NDArray[np.bool_]) -> Iterator[_T]:
    return compress(items, flags.tobytes())  # bytes are gone through twice as fast as an array


def _settled(batch: _Batch) -> tuple[NDArray[np.int64], NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Thread, device, correlation and size of all events, what is not told or cannot be as `EventTable` has it."""
    on_device = _ON_DEVICE[batch.kind]
    thread = batch.thread
    thread[on_device] = np.where(batch.stream == _UNTOLD, thread[on_device], batch.stream)
    device = np.full(len(thread), HOST, np.int16)
    number = np.where(batch.device == _UNTOLD, batch.process, batch.device)
    device[on_device] = np.where((number >= 0) & (number < 2**15), number, 0)  # no such device: the first
    correlation = np.full(len(thread), NO_CORRELATION, np.int64)
    # CUPTI counts from 1; 0 is none.
    correlation[_NUMBERED[batch.kind]] = np.where(batch.correlation > 0, batch.correlation, NO_CORRELATION)
    correlation[~_CORRELATED[batch.kind]] = NO_CORRELATION
    size_bytes = np.full(len(thread), NO_SIZE, np.int64)
    size_bytes[on_device] = np.where(batch.size_bytes >= 0, batch.size_bytes, NO_SIZE)
    return thread, device, correlation, size_bytes


def _autograd(told: list[AutogradArguments], row: NDArray[np.int64]) -> Autograd:
    """What operators in these rows say of autograd's nodes; -1 is the row of those that were left out."""
    sequence = _integers([own.sequence for own in told])
    thread = _integers([own.forward_thread for own in told])
    says = (sequence >= 0) & (row >= 0)
    return Autograd(row=row[says], sequence=sequence[says], forward_thread=thread[says])


def _in_order(told: dict[int, _T], position: NDArray[np.int64]) -> dict[int, _T]:
    """What was told, by row of the table."""
    before = np.fromiter(told, dtype=np.int64, count=len(told))
    pairs = zip(position[before].tolist(), told.values(), strict=True)
    return {row: of_one for row, of_one in pairs if row >= 0}


def _integers(values: list[int | str] | list[int | float | str]) -> NDArray[np.int64]:
    """A column of integers; text such as `stream 7`, `0x7` or `5555` counts as its number."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = {value: _integer(value) for value in dict.fromkeys(values)}
        return np.fromiter(map(numbers.__getitem__, values), dtype=np.int64, count=len(values))


def _integer(value: float | str) -> int:
    """The number in a value. Text without one gets a number of its own, which no profiler writes: below -2**32."""
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else _UNTOLD
    elif isinstance(value, str):
        match = _NUMBER.search(value)
        if match is None:
            return -(2**32) - int.from_bytes(value.encode("utf-8", "replace")[:6], "big")
        value = int(match[0], 16 if "x" in match[0].lower() else 10)
    return value if -(2**63) <= value < 2**63 else _UNTOLD
