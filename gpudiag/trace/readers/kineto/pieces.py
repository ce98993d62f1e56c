"""Decode a trace piece by piece while it is unpacked, so that its text and events are never whole in memory.

Reading is fast, because a megabyte at a time stays in the processor's caches.

A trace is `{ … "traceEvents": [ {…}, {…}, … ], … }`. It is cut at commas between events, and each piece is decoded as a
list. The text before the first and after the last event is decoded as a document with the last few events. A cut in the
wrong place (inside a string, inside an event) leaves a quote or a brace open, so both halves are invalid JSON: a wrong
cut cannot go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from gpudiag.trace.readers.kineto.event_json import (
    Document,
    Event,
    Repairs,
    decode_document,
    decode_events,
    ends_unfinished,
    repaired,
)

_EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS = re.compile(rb"\},\s*\{")
#: Longest header or single event.
_LONGEST = 8 << 20
_TRIES = 64
_REPAIRED_AT_ONCE = 1 << 20


class NotInPiecesError(Exception):
    """The text cannot be decoded in pieces; decode it whole to find out why."""


class CutShortError(Exception):
    """All pieces were decoded, and the last one ends unfinished; `args[0]` is the length of the text."""


def decode_in_pieces(pieces: Iterable[bytes], repairs: Repairs) -> Iterator[list[Event] | Document]:
    """Decode a trace from pieces of its text; `repairs` counts omissions.

    Yields:
        Lists of events in file order; the last item is the document with the remaining events.

    Raises:
        NotInPiecesError: the file cannot be cut into pieces, or a piece is not valid JSON.
        CutShortError: the text ends unfinished.
    """
    try:
        yield from _decode(pieces, repairs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotInPiecesError(str(error)) from error


def repaired_pieces(text: bytearray) -> Iterator[bytes]:
    """Yield the text with known defects of profilers repaired, piece by piece.

    A piece ends after a closing brace, because no escape, number or character continues there.

    Raises:
        NotInPiecesError: no closing brace for too long.
    """
    begin = 0
    while begin < len(text):
        end = text.rfind(b"}", begin, begin + _REPAIRED_AT_ONCE) + 1 or text.find(b"}", begin, begin + _LONGEST) + 1
        if not end and len(text) - begin > _LONGEST:
            raise NotInPiecesError("no place to cut")
        end = end or len(text)
        yield repaired(bytes(text[begin:end]))
        begin = end


def _decode(pieces: Iterable[bytes], repairs: Repairs) -> Iterator[list[Event] | Document]:
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
        # The comma becomes the end of this list and the begin of the next, so that only the rest is copied.
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
        if cut and ends_unfinished(error, text):
            raise CutShortError(length) from None
        raise


def _last_comma(text: bytearray) -> int | None:
    """Return the position of the last comma between two events."""
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
