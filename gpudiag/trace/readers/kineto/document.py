"""Kineto: from the JSON that torch.profiler writes to a `Trace`, whatever year and vendor it comes from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gpudiag.errors import NotATraceError, UnreadableInputError
from gpudiag.model.event import HOST, EventKind, EventTable, Trace
from gpudiag.trace.limits import ReadLimits
from gpudiag.trace.other_formats import OtherFormat, other_format
from gpudiag.trace.readers.kineto.collective_args import collective_calls
from gpudiag.trace.readers.kineto.columns import Columns
from gpudiag.trace.readers.kineto.event_json import DamagedError, Document, Header, Repairs, cut_short, decode_whole
from gpudiag.trace.readers.kineto.header import describe
from gpudiag.trace.readers.kineto.pieces import CutShortError, NotInPiecesError, decode_in_pieces, repaired_pieces
from gpudiag.trace.readers.kineto.roles import runs_on_gpus, step_marks_of
from gpudiag.trace.readers.kineto.workload import workload_of
from gpudiag.trace.readers.launches import count_unrecorded_graphs
from gpudiag.trace.unpack import begins_as_json, not_json, read_head, read_pieces, read_whole

#: So much of a file says what it is.
_HEAD_BYTES = 512 << 10
_OWN_SPAN = re.compile(rb'"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"Trace"')


def read_kineto(path: Path, shown: str, limits: ReadLimits) -> Trace:
    """Read one trace.

    Args:
        path: the file, JSON or gzip of JSON.
        shown: how the user named it; becomes `Trace.source`, and is used in messages.
        limits: bounds on what it may unpack to.

    Raises:
        UnreadableInputError: missing, damaged, cut short, or a trace in which nothing was recorded.
        NotATraceError: not JSON, or not of a PyTorch profiler.
        TooLargeError: it unpacks to more than the limits allow.
    """
    header, columns, repairs = _decode(path, shown, limits)
    job = describe(header)
    unknown = columns.unknown_categories()
    of_times: list[str] = []
    finished = columns.finish(of_times)
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
    notes += of_times
    table, told, event_waits, modules, first_ns = finished

    ordinals = np.flatnonzero(np.bincount(table.device - np.int64(HOST))) + HOST
    return Trace(
        source=shown,
        framework="pytorch" if job.is_kineto or _has_pytorch_events(table) else "unknown",
        events=table,
        origin_ns=job.base_ns + first_ns,
        rank=job.rank,
        world_size=job.world_size,
        host=job.host,
        device_names={
            device: name for device in ordinals.tolist() if device != HOST and (name := job.device_name(device))
        },
        collectives=collective_calls(table, told, job.groups),
        step_marks=step_marks_of(table),
        event_waits=event_waits,
        modules=modules,
        uses_devices=job.backend == "nccl" or runs_on_gpus(table.names),
        workload=workload_of(table),
        unread_devices=columns.unread_devices(table),
        unrecorded_graphs=count_unrecorded_graphs(table),
        dropped_events=job.dropped_events,
        notes=tuple(notes),
    )


def _has_pytorch_events(table: EventTable) -> bool:
    """Return whether the recording has operators or Python functions, whose categories PyTorch alone writes."""
    return len(table.rows_of(EventKind.OPERATOR, EventKind.PYTHON, EventKind.MODULE)) > 0


def _decode(path: Path, shown: str, limits: ReadLimits) -> tuple[Header, Columns, Repairs]:
    """Decode piece by piece, or whole where the text's layout or damage does not allow that."""
    columns = Columns(shown, repairs := Repairs())
    try:
        for part in decode_in_pieces(read_pieces(path, shown, limits), repairs):
            if isinstance(part, Document):
                columns.add(part.events)
                return part, columns, repairs
            columns.add(part)
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
    except DamagedError as error:
        return _decode_repaired(text, shown, error)
    except NotATraceError as error:
        raise _named(error, text, shown) from None
    columns.add(document.events)
    return document, columns, repairs


def _decode_repaired(text: bytearray, shown: str, damage: DamagedError) -> tuple[Header, Columns, Repairs]:
    """Repair long text piece by piece; give up where no event ends for too long, soon where all is hopeless."""
    columns = Columns(shown, repairs := Repairs())
    repairs.invalid_json = True
    try:
        for part in decode_in_pieces(repaired_pieces(text), repairs):
            if isinstance(part, Document):
                columns.add(part.events)
                return part, columns, repairs
            columns.add(part)
    except (NotInPiecesError, CutShortError):
        pass
    raise damage


def _named(error: NotATraceError, text: bytes | bytearray, shown: str) -> NotATraceError:
    """Return the error with the name of the format that the file has, where that is known."""
    other = other_format(bytes(text[:_HEAD_BYTES]), shown)
    return error if other is None else _of_other_format(shown, other)


def _of_other_format(shown: str, other: OtherFormat) -> NotATraceError:
    return NotATraceError(f"{shown} is {other.name}, which gpudiag does not read", other.hint)


def _no_events(path: Path, shown: str, limits: ReadLimits, unknown: list[str]) -> UnreadableInputError:
    """Return the error for a document of which no event was read: of another program, or in which nothing is."""
    if unknown:
        categories = f" (categories: {', '.join(unknown[:3])})"
        said = f"{shown} has trace events, but none that PyTorch's profiler writes{categories}"
        other = other_format(read_head(path, shown, limits)[:_HEAD_BYTES], shown)
        if other is None:
            return NotATraceError(said)
        return NotATraceError(f"{said}: it looks like {other.name}", other.hint)
    other = other_format(_without_own_span(read_head(path, shown, limits)[:_HEAD_BYTES]), shown)
    if other is not None:
        return _of_other_format(shown, other)
    return UnreadableInputError(
        f"{shown} is a trace without events: nothing was recorded",
        "Record while steps run: start the profiler before the loop and call prof.step() in it.",
    )


def _without_own_span(head: bytes) -> bytes:
    """Return the text without the profiler's own span of its recording, which is no event of anything else."""
    return _OWN_SPAN.sub(b"", head)
