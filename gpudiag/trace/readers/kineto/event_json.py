"""Decode the JSON of a Kineto trace to typed structures in one pass. Only fields that are needed are decoded."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, Union

import msgspec

from gpudiag.errors import NotATraceError, UnreadableInputError

#: Integers that fit a column. msgspec checks the bounds while decoding.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NOTHING = msgspec.Raw(b"")
_T = TypeVar("_T")
#: Maximum bytes of text that is repaired as a whole, which takes five times its length in memory.
_REPAIRED_WHOLE = 32 << 20


class Arguments(msgspec.Struct, gc=False):
    """Numbers in `args` of host calls and of device work."""

    device: Int64 | str = -1
    stream: Int64 | str = -1
    correlation: Int64 | str = 0
    bytes: Int64 | float | str = -1


class AutogradArguments(msgspec.Struct, gc=False):
    """Fields about autograd nodes in `args` of operators."""

    sequence: Int64 | str = msgspec.field(name="Sequence number", default=-1)
    forward_thread: Int64 | str = msgspec.field(name="Fwd thread id", default=0)


class Event(msgspec.Struct, gc=False):
    """A complete event (phase X). Times are in microseconds, as written; floats represent integers up to 2**53 exactly.

    The arguments stay undecoded, because most are not needed.
    """

    cat: str = ""
    name: str = ""
    pid: Int64 | str = 0
    tid: Int64 | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Complete(Event, gc=False, tag_field="ph", tag="X"):
    """An event with phase X."""


#: Types without fields for events of other phases (arrows, instants, counters, process names), a third of all events.
_OTHERS = [
    msgspec.defstruct(f"_Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False) for phase in "BEiICbnestfM"
]
_ANY_PHASE: Any = Union[_Complete, *_OTHERS]  # the operator `|` cannot join the types in a list


class _LooseEvent(Event, gc=False):
    """An event of any phase, or without a phase."""

    ph: str = ""


class TraceHeader(msgspec.Struct, gc=False):
    """Fields beside the events, undecoded because their types differ between versions of PyTorch."""

    schema: msgspec.Raw = msgspec.field(name="schemaVersion", default=_NOTHING)
    base_time: msgspec.Raw = msgspec.field(name="baseTimeNanoseconds", default=_NOTHING)
    distributed: msgspec.Raw = msgspec.field(name="distributedInfo", default=_NOTHING)
    devices: msgspec.Raw = msgspec.field(name="deviceProperties", default=_NOTHING)
    host: msgspec.Raw = msgspec.field(name="host_name", default=_NOTHING)
    log_information: msgspec.Raw = msgspec.field(name="INFO", default=_NOTHING)
    log_warnings: msgspec.Raw = msgspec.field(name="WARNING", default=_NOTHING)
    log_errors: msgspec.Raw = msgspec.field(name="ERROR", default=_NOTHING)


class Document(TraceHeader, gc=False, kw_only=True):
    """A whole trace."""

    events: list[Event]


class _StrictDocument(TraceHeader, gc=False, kw_only=True):
    events: list[_ANY_PHASE] = msgspec.field(name="traceEvents")


class _LooseDocument(TraceHeader, gc=False, kw_only=True):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


_document = msgspec.json.Decoder(_StrictDocument)
_event_list: msgspec.json.Decoder[list[object]] = msgspec.json.Decoder(list[_ANY_PHASE])
_loose_document = msgspec.json.Decoder(_LooseDocument)
_loose_list = msgspec.json.Decoder(list[msgspec.Raw])
_loose_event = msgspec.json.Decoder(_LooseEvent, strict=False)


class Repairs:
    """Counters of values that were replaced or left out in decoding, for the trace's notes."""

    def __init__(self) -> None:
        self.without_arguments = 0
        self.no_events = 0
        self.broken_text = 0
        self.invalid_json = False

    def notes(self) -> list[str]:
        """Return one line for each kind of repair."""
        notes = []
        if self.invalid_json:
            notes.append("the file was not valid JSON; values that are no numbers and stray bytes were left out")
        if self.without_arguments:
            notes.append(f"{self.without_arguments} events had arguments of an unknown form, which were left out")
        if self.broken_text:
            notes.append(f"{self.broken_text} events had text that is not UTF-8; the broken bytes were replaced")
        if self.no_events:
            notes.append(f"{self.no_events} entries were no events and were left out")
        return notes


def decode_events(text: bytes | bytearray, repairs: Repairs) -> list[Event]:
    """Decode the complete events of a JSON list: strictly, or event by event if strict decoding fails.

    Raises:
        msgspec.DecodeError: the text is not valid JSON, or no list.
    """
    try:
        return _complete(_event_list.decode(text))
    except (msgspec.ValidationError, UnicodeDecodeError):
        return _one_by_one(_loose_list.decode(text), repairs)


def decode_document(text: bytes | bytearray, repairs: Repairs) -> Document:
    """Decode a whole trace: strictly, or event by event if strict decoding fails.

    Raises:
        msgspec.ValidationError: the text is JSON, but no object with a list of `traceEvents`.
        msgspec.DecodeError: the text is not valid JSON.
    """
    document: _StrictDocument | _LooseDocument
    try:
        document = _document.decode(text)
        events = _complete(document.events)
    except (msgspec.ValidationError, UnicodeDecodeError):
        document = _loose_document.decode(text)
        events = _one_by_one(document.events, repairs)
    return Document(**{field: getattr(document, field) for field in TraceHeader.__struct_fields__}, events=events)


def _complete(events: list[object]) -> list[Event]:
    return [event for event in events if type(event) is _Complete]


def _one_by_one(raw_events: list[msgspec.Raw], repairs: Repairs) -> list[Event]:
    """Return the complete events, without unreadable entries."""
    events: list[Event] = []
    for raw in raw_events:
        try:
            event = _decode_event(raw, repairs)
        except msgspec.DecodeError:
            repairs.no_events += 1
            continue
        if event.ph == "X":
            events.append(event)
    return events


def _decode_event(raw: msgspec.Raw, repairs: Repairs) -> _LooseEvent:
    try:
        return _loose_event.decode(raw)
    except UnicodeDecodeError:
        repairs.broken_text += 1
        return _loose_event.decode(bytes(memoryview(raw)).decode("utf-8", "replace"))


def decode_arguments(raw_arguments: list[msgspec.Raw], wanted: type[_T], repairs: Repairs) -> list[_T]:
    """Decode arguments to `wanted` structs: strictly, or if that fails, with defaults for values of other types."""
    decode = msgspec.json.Decoder(wanted).decode
    try:
        return list(map(decode, raw_arguments))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [_decode_loosely(raw, wanted, repairs) for raw in raw_arguments]


def _decode_loosely(raw: msgspec.Raw, wanted: type[_T], repairs: Repairs) -> _T:
    try:
        return msgspec.json.decode(raw, type=wanted | None, strict=False) or wanted()
    except (msgspec.DecodeError, UnicodeDecodeError):
        repairs.without_arguments += 1
        return wanted()


class DamagedError(UnreadableInputError):
    """The text is not valid JSON, and longer than `_REPAIRED_WHOLE`, so that it must be repaired in pieces."""


def decode_whole(text: bytes | bytearray, shown: str, repairs: Repairs) -> Document:
    """Decode a trace of any layout, and repair known defects of profilers. `repairs` counts omissions.

    Raises:
        NotATraceError: the text is JSON, but neither an object with a list `traceEvents` nor a list of events.
        UnreadableInputError: the text is cut short, damaged, or nested too deep.
        DamagedError: the text is not valid JSON, and too long to be repaired at once.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        return _either_layout(text, repairs)
    except msgspec.ValidationError:
        raise NotATraceError(f"{shown} is JSON, but no profiler trace (it has no list of traceEvents)") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if ends_unfinished(error, text):
            raise cut_short(shown, len(text)) from None
        trouble = " ".join(str(error).split())
    except RecursionError:
        raise UnreadableInputError(f"{shown} is nested too deep to be a trace", "Record the trace again.") from None
    if len(text) > _REPAIRED_WHOLE:
        raise DamagedError(f"{shown} is damaged: {trouble}")
    try:
        document = _either_layout(repaired(bytes(text)), repairs)
    except msgspec.ValidationError:
        raise NotATraceError(f"{shown} is damaged JSON, and no profiler trace") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadableInputError(f"{shown} is damaged: {trouble}") from None
    repairs.invalid_json = True
    return document


def ends_unfinished(error: Exception, text: bytes | bytearray) -> bool:
    """Return whether a decoding error shows that the text was cut short."""
    # msgspec also reports half of a surrogate pair as "truncated", but such text can be repaired.
    return "truncated" in str(error) and not _HALF_PAIR.search(text)


def cut_short(shown: str, length: int) -> UnreadableInputError:
    """Return the error for a file whose JSON ends unfinished after `length` bytes."""
    return UnreadableInputError(
        f"{shown} is cut short: its JSON ends unfinished at byte {length}",
        "The job was probably killed while the profiler wrote; record again and let it finish.",
    )


def _either_layout(text: bytes | bytearray, repairs: Repairs) -> Document:
    if bytes(text[:4096]).lstrip()[:1] == b"[":
        return Document(events=decode_events(text, repairs))
    return decode_document(text, repairs)


#: Numbers that C++ streams write but JSON does not allow.
_NOT_FINITE = re.compile(rb"(?<=[:,\[\s])-?(?:nan|inf(?:inity)?)(?=[\s,}\]])", re.IGNORECASE)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
#: Text up to the next invalid escape (surrogates are valid in pairs only). The quantifiers are possessive, so that text
#: with many escapes matches without backtracking.
_GOOD_TEXT = re.compile(
    rb"(?:[^\\]++|\\(?:[\"\\/bfnrt]|u[dD][89abAB]..\\u[dD][c-fC-F]..|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+", re.DOTALL
)
_BAD_ESCAPE = re.compile(rb"\\(?:u[dD][89a-fA-F]..|)", re.DOTALL)
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)


def repaired(text: bytes) -> bytes:
    """Replace invalid content that profilers are known to write.

    Replaced are nan and inf, control characters, broken UTF-8, invalid escapes, and halves of surrogate pairs.
    """
    text = text.translate(_CONTROL).decode("utf-8", "replace").encode()
    return _NOT_FINITE.sub(b"null", _without_bad_escapes(text))


def _without_bad_escapes(text: bytes) -> bytes:
    parts, begin = [], 0
    while (good := _GOOD_TEXT.match(text, begin)) and (bad := _BAD_ESCAPE.match(text, good.end())):
        parts += [good[0], b"?"]
        begin = bad.end()
    return b"".join([*parts, text[begin:]])
