"""Text of others in our own messages: names of files, categories, hosts."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text that is safe in one line of a terminal: control characters and broken bytes as escapes."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
