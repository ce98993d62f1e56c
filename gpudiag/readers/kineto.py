"""Kineto: from the JSON that torch.profiler writes to a `Trace`, whatever year and vendor it comes from."""

from __future__ import annotations

import gc
import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.event import (
    HOST,
    NO_CORRELATION,
    NO_SIZE,
    EventKind,
    EventTable,
    Trace,
)
from gpudiag.readers import categories
from gpudiag.readers.collective_args import collective_calls
from gpudiag.readers.event_json import NO_ARGUMENTS, decode
from gpudiag.readers.header import describe
from gpudiag.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gpudiag.readers.event_json import Event

_SKIP = 255
_UNTOLD = -1
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|-?\d{1,19}(?!\d)")
_DAY_US = 86_400e6
_LAST_US = 4e15  # the year 2096; no time is later, and it fits int64 nanoseconds
_ON_DEVICE = np.zeros(256, dtype=bool)
_ON_DEVICE[[EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_ANNOTATION, EventKind.DEVICE_SYNC]] = (
    True
)
_HAS_CORRELATION = np.zeros(256, dtype=bool)
_HAS_CORRELATION[[EventKind.RUNTIME, EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.DEVICE_SYNC]] = True


def read_kineto(text: bytes | bytearray, shown: str) -> Trace:
    """Read one trace.

    Args:
        text: the JSON, unpacked.
        shown: how the user named the file; `Trace.source`, and for messages.

    Raises:
        NotATraceError: JSON, but not of a PyTorch profiler.
        UnreadableInputError: damaged, or a trace in which nothing was recorded.
    """
    with _no_collector():
        decoded = decode(text, shown)
        del text
        job = describe(decoded.header)
        notes = [*job.notes, *decoded.notes]
        events, kind, recording_end_us = _select(decoded.events, shown, notes)
        del decoded
        events, kind, start_ns, end_ns = _times(events, kind, recording_end_us, notes)
        if not events:
            raise UnreadableInputError(
                f"{shown} is a trace without events: nothing was recorded",
                "Record while steps run: start the profiler before the loop and call prof.step() in it.",
            )
        first_ns = int(start_ns[0])
        table = _table(events, kind, start_ns - first_ns, end_ns - first_ns)
        return Trace(
            source=shown,
            framework="pytorch",
            events=table,
            origin_ns=job.base_ns + first_ns,
            rank=job.rank,
            world_size=job.world_size,
            host=job.host,
            device_names={device: job.device_names[device] for device in _devices(table) if device in job.device_names},
            collectives=collective_calls(table, [event.args for event in events], job.groups),
            dropped_events=job.dropped_events,
            notes=tuple(notes),
        )


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without Python's cycle collector: hundreds of thousands of objects come to be here, none of them in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _select(
    events: list[Event], shown: str, notes: list[str]
) -> tuple[list[Event], NDArray[np.uint8], tuple[float, float] | None]:
    """The complete events of known categories, their kinds, and the recording's length and end (µs), if told."""
    complete = [event for event in events if event.ph == "X"]
    words = [event.cat for event in complete]
    kinds = {word: categories.kind_of(word) for word in dict.fromkeys(words)}
    codes = {word: _SKIP if kind is None else int(kind) for word, kind in kinds.items()}
    kind = np.fromiter(map(codes.__getitem__, words), dtype=np.uint8, count=len(words))
    unknown = sorted(word for word, known in kinds.items() if known is None and not categories.is_known(word))
    skipped = np.flatnonzero(kind == _SKIP)
    if unknown and len(skipped) == len(complete):
        raise NotATraceError(
            f"{shown} has trace events, but none that PyTorch's profiler writes (categories: {', '.join(unknown[:3])})"
        )
    if unknown:
        notes.append(f"events of unknown categories were left out: {', '.join(unknown[:5])}")
    recording = None
    for row in skipped.tolist():
        event = complete[row]
        if event.cat.lower() == categories.PROFILER_SPAN and 0 < event.dur < _DAY_US:
            length, end = recording or (0.0, -_LAST_US)
            recording = (max(length, event.dur), max(end, event.ts + event.dur))
    if len(skipped):
        complete = [complete[row] for row in np.flatnonzero(kind != _SKIP).tolist()]
        kind = kind[kind != _SKIP]
    return complete, kind, recording


def _times(
    events: list[Event], kind: NDArray[np.uint8], recording: tuple[float, float] | None, notes: list[str]
) -> tuple[list[Event], NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Start and end in whole nanoseconds, in order of start, with impossible times repaired or left out."""
    count = len(events)
    start_us = np.fromiter([event.ts for event in events], dtype=np.float64, count=count)
    length_us = np.fromiter([event.dur for event in events], dtype=np.float64, count=count)
    # Comparisons with NaN are false, so what is not a number is left out too.
    possible = (np.abs(start_us) < _LAST_US) & (length_us <= _DAY_US)
    if possible.any() and np.ptp(start_us[possible]) > _DAY_US:
        possible &= np.abs(start_us - np.median(start_us[possible])) <= _DAY_US
    if not possible.all():
        notes.append(
            f"{count - int(possible.sum())} events had impossible times (off by more than a day) and were left out"
        )
        events = [event for event, keep in zip(events, possible.tolist(), strict=True) if keep]
        kind, start_us, length_us = kind[possible], start_us[possible], length_us[possible]
    if (negative := length_us < 0).any():
        notes.append(f"{int(negative.sum())} events had negative durations; taken as 0")
        length_us = np.where(negative, 0.0, length_us)
    start_ns = _nanoseconds(start_us)
    end_ns = start_ns + _nanoseconds(length_us)
    if recording is not None:
        recorded_us, recording_end_us = recording
        if (endless := (length_us > recorded_us) & (start_us + length_us > recording_end_us)).any():
            notes.append(f"{int(endless.sum())} events claim to last longer than the recording; cut at its end")
            cut_ns = np.maximum(_nanoseconds(np.array([recording_end_us]))[0], start_ns)
            end_ns = np.where(endless, cut_ns, end_ns)
    order = np.argsort(start_ns, kind="stable")
    if (np.diff(start_ns[order]) == 0).any():
        order = np.lexsort((-end_ns, start_ns))  # the longer first; stable, so the file's order decides the rest
    return [events[row] for row in order.tolist()], kind[order], start_ns[order], end_ns[order]


def _nanoseconds(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Microseconds as whole nanoseconds, no less exact than the float: whole and fraction are scaled apart.

    Example: 1712000000000000.25 µs times 1000 is beyond what a float holds exactly; 1712000000000000 and 0.25 are not.
    """
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * NS_PER_US).astype(np.int64)
    return np.asarray(whole.astype(np.int64) * NS_PER_US + fraction_ns, dtype=np.int64)


def _table(
    events: list[Event], kind: NDArray[np.uint8], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> EventTable:
    """Columns of events that are in order of start."""
    count = len(events)
    words = [event.name for event in events]
    names = tuple(dict.fromkeys(words))
    index = {name: position for position, name in enumerate(names)}
    name = np.fromiter(map(index.__getitem__, words), dtype=np.int32, count=count)
    annotation = np.fromiter(map(categories.is_annotation, names), dtype=bool, count=len(names))
    kind = np.where((kind == EventKind.OPERATOR) & annotation[name], np.uint8(EventKind.ANNOTATION), kind)

    thread = _integers([event.tid for event in events])
    device = np.full(count, HOST, dtype=np.int16)
    correlation = np.full(count, NO_CORRELATION, dtype=np.int64)
    size_bytes = np.full(count, NO_SIZE, dtype=np.int64)

    rows = np.flatnonzero(_ON_DEVICE[kind])
    arguments = [events[row].args or NO_ARGUMENTS for row in rows.tolist()]
    told = _integers([own.stream for own in arguments])
    thread[rows] = np.where(told == _UNTOLD, thread[rows], told)
    told = _integers([own.device for own in arguments])
    process = _integers([events[row].pid for row in rows.tolist()])
    ordinal = np.where(told == _UNTOLD, process, told)
    device[rows] = np.where((ordinal >= 0) & (ordinal < 2**15), ordinal, 0)
    size = _integers([own.bytes for own in arguments])
    size_bytes[rows] = np.where(size < 0, NO_SIZE, size)

    rows = np.flatnonzero(_HAS_CORRELATION[kind])
    told = _integers([(events[row].args or NO_ARGUMENTS).correlation for row in rows.tolist()])
    correlation[rows] = np.where(told <= 0, NO_CORRELATION, told)  # CUPTI counts from 1; 0 is none
    return EventTable(
        kind=kind,
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        thread=thread,
        device=device,
        correlation=correlation,
        size_bytes=size_bytes,
        names=names,
    )


def _integers(values: list[int | str] | list[int | float | str]) -> NDArray[np.int64]:
    """A column of integers; text such as `stream 7`, `0x7` or `5555` counts as its number."""
    try:
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        numbers: dict[int | float | str, int] = {}
        for value in dict.fromkeys(values):
            numbers[value] = _integer(value, len(numbers))
        return np.fromiter(map(numbers.__getitem__, values), dtype=np.int64, count=len(values))


def _integer(value: float | str, position: int) -> int:
    """The number in a value; a text without one gets a number of its own, below all that profilers write."""
    if isinstance(value, str):
        match = _NUMBER.search(value)
        value = int(match[0], 0 if match[0].lower().startswith("0x") else 10) if match else -(2**32) - position
    elif isinstance(value, float):
        value = int(value) if math.isfinite(value) else _UNTOLD
    return value if -(2**63) <= value < 2**63 else -(2**32) - position


def _devices(table: EventTable) -> list[int]:
    """Ordinals of the devices on which something was recorded."""
    return [device for device in np.unique(table.device).tolist() if device != HOST]
