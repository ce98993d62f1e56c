"""Text from outside made harmless: process names, device names, and other people's facts files.

A process may call itself anything, escape sequences included, and a facts file may come from anyone. Control and format
characters (Unicode categories Cc, Cf, Cs, Co, Zl, Zp) can move a terminal's cursor, recolour it, or reorder a line, so
each is replaced by U+FFFD. Markup of terminals and pages is the business of whoever draws.
"""

from __future__ import annotations

import unicodedata
from typing import Any

_MOST_CHARACTERS = 4096
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def neutral_text(text: str) -> str:
    """The text without control and format characters, cut at 4096 characters."""
    text = text[:_MOST_CHARACTERS]
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _HARMFUL else c for c in text)


def neutral(value: Any) -> Any:
    """The same tree of dicts, lists and scalars with every string, keys included, made harmless."""
    if isinstance(value, str):
        return neutral_text(value)
    if isinstance(value, dict):
        return {neutral(key): neutral(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [neutral(inner) for inner in value]
    return value
