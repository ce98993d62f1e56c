"""What TensorFlow's profiler says of copies, in the words of PyTorch's: rules and reports know one set of names.

MemcpyH2D   kind_src:pageable kind_dst:device size:38535168 dest:0 async:1
→ Memcpy HtoD (Pageable -> Device), 38535168 bytes
"""

from __future__ import annotations

import re

from gpudiag.model.event import NO_SIZE
from gpudiag.record import Record

_DIRECTION = re.compile(r"Memcpy([HDAP])2([HDAP])$")
_KINDS = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_SET_SIZE = re.compile(r"\bnum_bytes:(\d{1,18})\b")


class Copy(Record, frozen=True):
    """A copy's name, as PyTorch's profiler writes it, and its size; `NO_SIZE` where it is not told."""

    name: str
    size_bytes: int


def copy_of(event: str, details: str) -> Copy:
    """Name and size from the event's name and its `memcpy_details`."""
    size = _SIZE.search(details)
    direction = _DIRECTION.match(event)
    name = event
    if direction is not None:
        letters = f"{direction[1]}to{direction[2]}"
        kinds = _KINDS.search(details)
        where = f" ({kinds[1].capitalize()} -> {kinds[2].capitalize()})" if kinds else ""
        name = f"Memcpy {letters}{where}"
    return Copy(name, int(size[1]) if size else NO_SIZE)


def set_bytes(details: str) -> int:
    """Bytes that a memset filled, from its `Memset_details`."""
    size = _SET_SIZE.search(details)
    return int(size[1]) if size else NO_SIZE
