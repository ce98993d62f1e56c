"""The JSON of a Kineto trace as typed structures: only what is read, decoded in one pass."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError

#: Integers that fit a column; msgspec checks the bounds while it decodes.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NOTHING = msgspec.Raw(b"")


class Arguments(msgspec.Struct, gc=False):
    """`args` of one event. What few events carry stays undecoded (`Raw`) until it is asked for."""

    device: Int64 | str = -1
    stream: Int64 | str = -1
    correlation: Int64 | str = 0
    bytes: Int64 | float | str = -1
    external_id: Int64 | str = msgspec.field(name="External id", default=0)
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=_NOTHING)
    in_elements: msgspec.Raw = msgspec.field(name="In msg nelems", default=_NOTHING)
    out_elements: msgspec.Raw = msgspec.field(name="Out msg nelems", default=_NOTHING)
    dtype: msgspec.Raw = msgspec.field(name="dtype", default=_NOTHING)
    group_size: msgspec.Raw = msgspec.field(name="Group size", default=_NOTHING)
    group: msgspec.Raw = msgspec.field(name="Process Group Name", default=_NOTHING)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=_NOTHING)
    sequence: msgspec.Raw = msgspec.field(name="Seq", default=_NOTHING)
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds as written. Integers up to 2**53 are exact as floats."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments | None = None


class _BareEvent(msgspec.Struct, gc=False):
    """An event whose arguments cannot be read."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: float = 0.0
    dur: float = 0.0


class Header(msgspec.Struct, gc=False):
    """What stands beside the events, undecoded: no version of PyTorch agrees with another on its types."""

    base_time: msgspec.Raw = msgspec.field(name="baseTimeNanoseconds", default=_NOTHING)
    distributed: msgspec.Raw = msgspec.field(name="distributedInfo", default=_NOTHING)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=_NOTHING)
    host: msgspec.Raw = msgspec.field(name="host_name", default=_NOTHING)
    schema_version: msgspec.Raw = msgspec.field(name="schemaVersion", default=_NOTHING)
    log_information: msgspec.Raw = msgspec.field(name="INFO", default=_NOTHING)
    log_warnings: msgspec.Raw = msgspec.field(name="WARNING", default=_NOTHING)
    log_errors: msgspec.Raw = msgspec.field(name="ERROR", default=_NOTHING)


class _Document(Header, gc=False, kw_only=True):
    events: list[Event] = msgspec.field(name="traceEvents")


class _LooseDocument(Header, gc=False, kw_only=True):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class Decoded(msgspec.Struct, gc=False):
    """A decoded document: its header, all its events in file order, and what had to be repaired."""

    header: Header
    events: list[Event]
    notes: list[str]


_document = msgspec.json.Decoder(_Document)
_event_list = msgspec.json.Decoder(list[Event])
_loose_document = msgspec.json.Decoder(_LooseDocument)
_loose_list = msgspec.json.Decoder(list[msgspec.Raw])
_loose_event = msgspec.json.Decoder(Event, strict=False)
_bare_event = msgspec.json.Decoder(_BareEvent, strict=False)

#: What C++ streams write where JSON has no number for it.
_NOT_FINITE = re.compile(rb"(?<=[:,\[\s])-?(?:nan|inf(?:inity)?)(?=[\s,}\]])", re.IGNORECASE)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
#: Group 1 is an escape that JSON allows (surrogates in pairs only); anything else after a backslash is not.
_ESCAPE = re.compile(
    rb"\\(?:([\"\\/bfnrt]|u[dD][89abAB]..\\u[dD][c-fC-F]..|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|u[dD][89a-fA-F]..|)"
)
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)


def decode(text: bytes | bytearray, shown: str) -> Decoded:
    """Decode a trace, first strictly, and where that fails event by event.

    Args:
        text: the JSON.
        shown: how to call the file in messages.

    Raises:
        NotATraceError: JSON, but neither an object with a list `traceEvents` nor a list of events.
        UnreadableInputError: no valid JSON: cut short, damaged, or nested too deep.
    """
    buffer = memoryview(text)
    if buffer[:3] == b"\xef\xbb\xbf":
        buffer = buffer[3:]
    try:
        return _decode(buffer, shown)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec also says "truncated" of half a surrogate pair, which a repair can mend.
        if "truncated" in str(error) and not _HALF_PAIR.search(text):
            raise UnreadableInputError(
                f"{shown} is cut short: its JSON ends unfinished at byte {len(buffer)}",
                "The job was probably killed while the profiler wrote; record again and let it finish.",
            ) from None
        first = str(error)
    except RecursionError:
        raise UnreadableInputError(f"{shown} is nested too deep to be a trace", "Record the trace again.") from None
    try:
        repaired = _decode(memoryview(_repair(bytes(buffer))), shown)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadableInputError(f"{shown} is damaged JSON: {_one_line(first)}") from None
    repaired.notes.append("the file was not valid JSON; values that are no numbers and stray bytes were left out")
    return repaired


def _decode(buffer: memoryview, shown: str) -> Decoded:
    is_list = bytes(buffer[:4096]).lstrip()[:1] == b"["
    try:
        if is_list:
            return Decoded(Header(), _event_list.decode(buffer), [])
        document = _document.decode(buffer)
    except msgspec.ValidationError:
        return _decode_loosely(buffer, shown, is_list=is_list)
    return Decoded(document, document.events, [])


def _decode_loosely(buffer: memoryview, shown: str, *, is_list: bool) -> Decoded:
    """Decode event by event: leave out arguments that cannot be read, and events that cannot."""
    header = Header()
    try:
        if is_list:
            raw_events = _loose_list.decode(buffer)
        else:
            document = _loose_document.decode(buffer)
            header, raw_events = document, document.events
    except msgspec.ValidationError:
        raise NotATraceError(f"{shown} is JSON, but no profiler trace (it has no list of traceEvents)") from None
    events: list[Event] = []
    bare = lost = 0
    for raw in raw_events:
        try:
            events.append(_loose_event.decode(raw))
        except (msgspec.ValidationError, UnicodeDecodeError):
            try:
                event = _bare_event.decode(raw)
            except (msgspec.ValidationError, UnicodeDecodeError):
                lost += 1
            else:
                bare += 1
                events.append(
                    Event(event.ph, event.cat, event.name, event.pid, event.tid, event.ts, event.dur),
                )
    notes = []
    if bare:
        notes.append(f"{bare} events had arguments of an unknown form, which were left out")
    if lost:
        notes.append(f"{lost} entries were no events and were left out")
    return Decoded(header, events, notes)


def _repair(text: bytes) -> bytes:
    """Replace what profilers are known to write though JSON forbids it.

    That is: nan and inf, control characters, broken UTF-8, backslashes that escape nothing, halves of surrogate pairs.
    """
    text = text.translate(_CONTROL).decode("utf-8", "replace").encode()
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else b"?", text)
    return _NOT_FINITE.sub(b"null", text)


def _one_line(message: str) -> str:
    return " ".join(message.split())[:200]
