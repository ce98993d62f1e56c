"""Make text from files, devices and untrusted people safe to store and to draw.

Anyone may have written the event names, paths and messages of a trace, the names of processes, or a facts file. A
terminal obeys escape sequences, and right-to-left overrides change the order in which a line is shown. Such characters
are replaced: by U+FFFD in stored text (`sanitize`), by a visible symbol in drawn text (`one_line`, `printable`), by
Python's escape in file names in messages (`with_escapes`). Code that draws text must escape markup itself.
"""

from __future__ import annotations

import unicodedata
from typing import Any

#: Categories of characters that a terminal acts on or that change the display of the rest of the line: control, format
#: (bidirectional overrides, zero width, soft hyphen), surrogate, private use, line and paragraph separators.
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
#: `_HARMFUL` and characters that Python's version of Unicode does not define, because a terminal may interpret them.
_UNPRINTABLE = _HARMFUL | {"Cn"}
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F
_MAX_CHARACTERS = 4096
#: A spreadsheet interprets text that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def sanitize(value: Any) -> Any:
    """Return the same tree of dicts, lists and scalars, with every string (also keys) cleaned by `sanitize_text`."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, dict):
        return {sanitize(key): sanitize(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [sanitize(inner) for inner in value]
    return value


def sanitize_text(text: str) -> str:
    """Return the text cut at 4096 characters, with U+FFFD for each character in `_HARMFUL`."""
    text = text[:_MAX_CHARACTERS]
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _HARMFUL else c for c in text)


def one_line(text: str) -> str:
    """Return `text` printable and on one line: each run of whitespace becomes one space."""
    return printable(" ".join(text.split()))


def printable(text: str, *, keep: str = "") -> str:
    r"""Return `text` with a visible replacement for each invisible character, except the characters in `keep`.

    >>> printable("a\x1b[31mb")
    'a␛[31mb'
    >>> printable("a\u202eb")
    'a<U+202E>b'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep else _visible(character) for character in text)


def _visible(character: str) -> str:
    """Return a character, or a visible symbol or code point in its place if it is unprintable."""
    if unicodedata.category(character) not in _UNPRINTABLE:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"<U+{code:04X}>"


def with_escapes(text: str) -> str:
    r"""Return text on one line, with Python's escapes for unprintable characters, so that users can copy it.

    >>> with_escapes("rank0\x1b.json")
    'rank0\\x1b.json'
    """
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def escaped_json(text: bytes) -> bytes:
    r"""Escape each invisible character of JSON text. Such characters occur only in strings.

    >>> escaped_json('{"a": "\u202eb"}'.encode())
    b'{"a": "\\u202eb"}'
    """
    if text.isascii() and b"\x7f" not in text:
        return text
    decoded = text.decode()
    harmful = {c for c in set(decoded) if ord(c) >= _DELETE and not c.isprintable()}
    return decoded.translate({ord(c): _escape(c) for c in harmful}).encode()


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def without_surrogates(value: Any) -> Any:
    """Return a tree of dicts, lists and scalars with U+FFFD for each surrogate, which no UTF-8 file can hold."""
    if isinstance(value, str):
        return value if value.isascii() else _encodable(value)
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_surrogates(inner) for inner in value]
    return value


def _encodable(text: str) -> str:
    return "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= c <= "\udfff" else c for c in text)


def not_a_formula(text: str) -> str:
    """Return text for a cell of a CSV file, with a leading quote if a spreadsheet would run it as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
