"""Decoding a trace piece by piece while it is unpacked, so that neither its text nor its events are ever whole in
memory. That is what makes reading fast: a megabyte at a time stays in the processor's caches.

A trace is `{ … "traceEvents": [ {…}, {…}, … ], … }`. It is cut at commas between events, each piece is decoded as a
list of its own, and what stands before the first and after the last event is decoded as a document with the last
few events. A cut in the wrong place (inside a text, inside an event) leaves a quote or a brace open, so both halves
are invalid: a cut can fail, it cannot go unnoticed.
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
#: A header, or a single event, longer than this is not worth waiting for.
_LONGEST = 8 << 20
_TRIES = 64
_REPAIRED_AT_ONCE = 1 << 20


class NotInPiecesError(Exception):
    """This text cannot be decoded in pieces; decode it whole to see what is the matter, if anything."""


class CutShortError(Exception):
    """All pieces were decoded, and the last one ends unfinished; `args[0]` is the length of the text."""


def decode_in_pieces(pieces: Iterable[bytes], repairs: Repairs) -> Iterator[list[Event] | Document]:
    """Decode a trace from pieces of its text.

    Args:
        pieces: the text, in order.
        repairs: what was left out is counted here.

    Yields:
        Lists of events in file order, and last the document with the last few.

    Raises:
        NotInPiecesError: no pieces can be cut, or one is no valid JSON.
        CutShortError: the text ends unfinished.
    """
    try:
        yield from _decode(pieces, repairs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotInPiecesError(str(error)) from error


def repaired_pieces(text: bytearray) -> Iterator[bytes]:
    """The text with what profilers are known to get wrong repaired, a piece at a time.

    A piece ends behind a closing brace: no escape, number or character goes on there.

    Raises:
        NotInPiecesError: there is none for too long.
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
        # The comma itself becomes the end of this list and the begin of the next: nothing is copied but the rest.
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
    """Where the last comma between two events is."""
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
