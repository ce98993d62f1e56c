"""The base of what stages hand to each other inside the process."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True):
    """Named fields, and nothing else.

    Used in place of frozen dataclasses because making such a class takes a fiftieth of the time (12 µs against 0.6 ms
    for nine fields), which some forty of them would add to the start of every command, and making an instance a tenth.
    Change one with `msgspec.structs.replace`.

    Records are not decoded from files, so that their annotations are never evaluated and may name what is imported for
    type checkers only. What is decoded derives from `msgspec.Struct` itself.
    """
