"""Convert the JSON that torch.profiler writes, of all versions and for all vendors, to a `Trace`.

A trace is decoded piece by piece while it is unpacked, so that neither all text nor all events are in memory at once.
Pieces of a megabyte are fast, because they stay in the processor's caches.

A trace is `{ … "traceEvents": [ {…}, {…}, … ], … }`. The text is cut at commas between events, and each piece is
decoded as a list. The text before the first and after the last event is decoded as a document with the last few events.
A wrong cut (inside a string or an event) is always noticed, because it leaves a quote or a brace open, so that both
halves are invalid JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.event import HOST, EventKind, EventTable, Trace
from gpudiag.trace.readers.kineto.columns import Columns
from gpudiag.trace.readers.kineto.event_args import all_groups, collective_calls
from gpudiag.trace.readers.kineto.event_json import (
    DamagedError,
    Document,
    Event,
    Repairs,
    TraceHeader,
    cut_short,
    decode_document,
    decode_events,
    decode_whole,
    ends_unfinished,
    repaired,
)
from gpudiag.trace.readers.kineto.header import describe
from gpudiag.trace.readers.kineto.roles import runs_on_gpus, step_marks_of, workload_of
from gpudiag.trace.readers.names import count_unrecorded_graphs
from gpudiag.trace.unpack import ReadLimits, begins_as_json, not_json, read_head, read_pieces, read_whole

_EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS = re.compile(rb"\},\s*\{")
#: Maximum bytes of the header or of a single event.
_LONGEST = 8 << 20
#: Maximum number of closing braces that are examined to find a comma between events.
_TRIES = 64
#: Bytes of text that are repaired at once.
_REPAIRED_AT_ONCE = 1 << 20
#: Number of first bytes that suffice to recognise a format.
_HEAD_BYTES = 512 << 10
_PROFILER_SPAN = re.compile(rb'"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"Trace"')


class NotInPiecesError(Exception):
    """The text cannot be decoded in pieces. Decode it as a whole to find the reason."""


class CutShortError(Exception):
    """The text ends before its JSON is complete. `args[0]` is the length of the text in bytes."""


def decode_in_pieces(pieces: Iterable[bytes], repairs: Repairs) -> Iterator[list[Event] | Document]:
    """Decode a trace from pieces of its text. `repairs` counts omissions.

    Yields:
        Lists of events in file order; the last item is the document with the remaining events.

    Raises:
        NotInPiecesError: the file cannot be cut into pieces, or a piece is not valid JSON.
        CutShortError: the text ends unfinished.
    """
    try:
        yield from _decode_between_commas(pieces, repairs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotInPiecesError(str(error)) from error


def repaired_pieces(text: bytearray) -> Iterator[bytes]:
    """Yield the text with known defects of profilers repaired, piece by piece.

    A piece ends after a closing brace, so that no escape, number or character is cut.

    Raises:
        NotInPiecesError: the next closing brace is too far away.
    """
    begin = 0
    while begin < len(text):
        # The last brace of the next megabyte, or if there is none, the first brace after it.
        end = text.rfind(b"}", begin, begin + _REPAIRED_AT_ONCE) + 1 or text.find(b"}", begin, begin + _LONGEST) + 1
        if not end and len(text) - begin > _LONGEST:
            raise NotInPiecesError("no place to cut")
        end = end or len(text)
        yield repaired(bytes(text[begin:end]))
        begin = end


def _decode_between_commas(pieces: Iterable[bytes], repairs: Repairs) -> Iterator[list[Event] | Document]:
    """Decode as `decode_in_pieces` does, but raise msgspec's errors. Each list ends at the last comma of a piece."""
    header: bytes | None = None
    text = bytearray()
    length, cut = 0, False
    for piece in pieces:
        text += piece
        length += len(piece)
        if header is None:
            begin = _EVENTS_BEGIN.search(text)
            if begin is None:
                _check_length(text)
                continue
            header = bytes(text[: begin.end()])
            text = bytearray(b"[") + text[begin.end() :]
        comma = _last_comma(text)
        if comma is None:
            _check_length(text)
            continue
        # The comma is replaced by the end of this list, and the rest is copied into the next list.
        rest = bytearray(b"[") + text[comma + 1 :]
        text[comma] = ord("]")
        del text[comma + 1 :]
        yield decode_events(text, repairs)
        text, cut = rest, True
    if header is None:
        raise NotInPiecesError("no traceEvents")
    try:
        yield decode_document(header + text[1:], repairs)
    except msgspec.DecodeError as error:
        # Text that was never cut may be no trace: its error is raised again, so that it is decoded as a whole.
        if cut and ends_unfinished(error, text):
            raise CutShortError(length) from None
        raise


def _last_comma(text: bytearray) -> int | None:
    """Return the position of the last comma between events; None if none follows one of the last `_TRIES` braces."""
    end = len(text)
    for _ in range(_TRIES):
        brace = text.rfind(b"},", 0, end)
        if brace < 0:
            return None
        if _BETWEEN_EVENTS.match(text, brace):
            return brace + 1
        end = brace + 1
    return None


def _check_length(text: bytearray) -> None:
    if len(text) > _LONGEST:
        raise NotInPiecesError("no place to cut")


def read_kineto(path: Path, shown: str, limits: ReadLimits) -> Trace:
    """Read one trace. Take the arguments of `Reader.read`, and raise the same errors."""
    header, columns, repairs = _decode(path, shown, limits)
    job = describe(header)
    unknown = columns.unknown_categories()
    time_notes: list[str] = []
    finished = columns.finish(time_notes)
    if finished is None and (devices := columns.activity_not_read()):
        raise UnreadableInputError(
            f"{shown} has activity of {', '.join(devices)} only, which gpudiag does not read",
            "Use the profiler of the accelerator's vendor; gpudiag reads GPUs of NVIDIA and AMD.",
        )
    if finished is None:
        raise _no_events(path, shown, limits, unknown)
    notes = [*job.notes, *repairs.notes()]
    if unknown:
        notes.append(f"events of unknown categories were left out: {', '.join(unknown[:5])}")
    notes += time_notes
    table = finished.table
    ordinals = np.flatnonzero(np.bincount(table.device - np.int64(HOST))) + HOST  # the device numbers that occur
    return Trace(
        source=shown,
        framework="pytorch" if job.is_kineto or _has_pytorch_events(table) else "unknown",
        events=table,
        origin_ns=job.base_ns + finished.first_ns,
        rank=job.rank,
        world_size=job.world_size,
        host=job.host,
        device_names={
            device: name for device in ordinals.tolist() if device != HOST and (name := job.device_name(device))
        },
        collectives=collective_calls(table, finished.collectives, job.groups),
        groups=all_groups(job.groups, finished.collectives.values()),
        step_marks=step_marks_of(table),
        event_waits=finished.event_waits,
        modules=finished.modules,
        operator_work=finished.operator_work,
        uses_devices=job.backend == "nccl" or runs_on_gpus(table.names),
        workload=workload_of(table),
        unread_devices=columns.unread_devices(table),
        unrecorded_graphs=count_unrecorded_graphs(table),
        dropped_events=job.dropped_events,
        notes=tuple(notes),
    )


def _has_pytorch_events(table: EventTable) -> bool:
    """Return whether the trace has operators or Python functions, whose categories only PyTorch writes."""
    return len(table.rows_of(EventKind.OPERATOR, EventKind.PYTHON, EventKind.MODULE)) > 0


def _decode(path: Path, shown: str, limits: ReadLimits) -> tuple[TraceHeader, Columns, Repairs]:
    """Decode piece by piece, or as a whole if the text's layout or damage prevents pieces."""
    try:
        return _decode_pieces(read_pieces(path, shown, limits), shown, Repairs())
    except NotInPiecesError:
        pass
    except CutShortError as error:
        raise cut_short(shown, error.args[0]) from None
    columns = Columns(shown, repairs := Repairs())
    text = read_whole(path, shown, limits)
    if not begins_as_json(text):
        raise not_json(bytes(text[:_HEAD_BYTES]), shown)
    try:
        document = decode_whole(text, shown, repairs)
    except DamagedError as damage:
        # The text is too long to be repaired as a whole: repair it piece by piece.
        repairs = Repairs()
        repairs.invalid_json = True
        try:
            return _decode_pieces(repaired_pieces(text), shown, repairs)
        except (NotInPiecesError, CutShortError):
            raise damage from None
    except NotATraceError as error:
        raise _other_format(bytes(text[:_HEAD_BYTES]), shown) or error from None
    columns.add(document.events)
    return document, columns, repairs


def _decode_pieces(pieces: Iterable[bytes], shown: str, repairs: Repairs) -> tuple[TraceHeader, Columns, Repairs]:
    """Collect the events of all pieces, and return them with the header and the repairs."""
    columns = Columns(shown, repairs)
    for piece in decode_in_pieces(pieces, repairs):
        if isinstance(piece, Document):
            columns.add(piece.events)
            return piece, columns, repairs
        columns.add(piece)
    raise NotInPiecesError("no document")


def _other_format(head: bytes, shown: str) -> NotATraceError | None:
    """Return the error that names the format of the file; None if the format is unknown."""
    from gpudiag.trace.other_formats import other_format

    if (other := other_format(head, shown)) is None:
        return None
    return NotATraceError(f"{shown} is {other.name}, which gpudiag does not read", other.hint)


def _no_events(path: Path, shown: str, limits: ReadLimits, unknown: list[str]) -> UnreadableInputError:
    """Return the error for a document without readable events: a file of a different program, or an empty trace."""
    from gpudiag.trace.other_formats import other_format

    head = read_head(path, shown, limits)[:_HEAD_BYTES]
    if unknown:
        categories = f" (categories: {', '.join(unknown[:3])})"
        message = f"{shown} has trace events, but none that PyTorch's profiler writes{categories}"
        other = other_format(head, shown)
        if other is None:
            return NotATraceError(message)
        return NotATraceError(f"{message}: it looks like {other.name}", other.hint)
    # Remove the span of PyTorch's profiler, because `other_format` would mistake it for an event of another program.
    return _other_format(_PROFILER_SPAN.sub(b"", head), shown) or UnreadableInputError(
        f"{shown} is a trace without events: nothing was recorded",
        "Record while steps run: start the profiler before the loop and call prof.step() in it.",
    )
