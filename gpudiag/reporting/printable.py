"""Text from files and from other people, made safe to print: it may name things, and do nothing else.

Traces carry event names, paths and messages that anyone may have written. A terminal obeys escape sequences, and
right-to-left overrides make a line read as what it is not. Here each such character becomes a visible one.
"""

from __future__ import annotations

import unicodedata

#: Categories that a terminal acts on or that change how the rest of the line reads: control, format (bidirectional
#: overrides, zero width, soft hyphen), surrogate, private use, unassigned, line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_CONTROL_PICTURES = 0x2400
_DELETE = 0x7F


def printable(text: str, *, keep: str = "") -> str:
    """`text` with every character that is not plainly visible replaced by one that is; those in `keep` stay.

    >>> printable("a\\x1b[31mb")
    'a␛[31mb'
    >>> printable("a\\u202eb")
    'a<U+202E>b'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if character in keep else _visible(character) for character in text)


def one_line(text: str) -> str:
    """`text` printable and on one line: runs of line breaks and tabs become one space."""
    return printable(" ".join(text.split()))


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNPRINTABLE:
        return character
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    if code == _DELETE:
        return "␡"
    return f"<U+{code:04X}>"
