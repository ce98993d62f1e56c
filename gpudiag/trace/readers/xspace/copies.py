"""What TensorFlow's profiler says of copies.

MemcpyH2D   kind_src:pageable kind_dst:device size:38535168 dest:0 async:1
→ host to device, from pageable memory, 38535168 bytes; shown as "Memcpy HtoD (Pageable -> Device)"
"""

from __future__ import annotations

import re

import msgspec

from gpudiag.model.event import NO_SIZE, Direction, HostMemory

_DIRECTION = re.compile(r"Memcpy([HDAP])2([HDAP])$")
#: As gpudiag writes PyTorch's "Memcpy HtoD (Pageable -> Device)": xprof knows it without the space.
_WRITTEN = re.compile(r"Memcpy([HDAP])to([HDAP])\b(?: \((\w+) -> (\w+)\))?")
_KINDS = re.compile(r"kind_src:(\w+) kind_dst:(\w+)")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_SET_SIZE = re.compile(r"\bnum_bytes:(\d{1,18})\b")


_DIRECTIONS = {
    "H2D": Direction.HOST_TO_DEVICE,
    "D2H": Direction.DEVICE_TO_HOST,
    "D2D": Direction.DEVICE_TO_DEVICE,
    "P2P": Direction.PEER,
    "H2H": Direction.HOST_TO_HOST,
}


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy: the name that it is shown by, its size (`NO_SIZE` where that is not told), and where it goes."""

    name: str
    size_bytes: int = NO_SIZE
    direction: Direction = Direction.NONE
    host_memory: HostMemory = HostMemory.UNKNOWN


def copy_of(event: str, details: str) -> Copy:
    """Name and size from the event's name and its `memcpy_details`."""
    size = _SIZE.search(details)
    size_bytes = int(size[1]) if size else NO_SIZE
    direction = _DIRECTION.match(event) or _WRITTEN.match(event)
    if direction is None:
        return Copy(name=event, size_bytes=size_bytes)
    told = _KINDS.search(details)
    kinds = [kind for kind in (told.groups() if told else direction.groups()[2:]) if kind]
    memory = {kind.upper() for kind in kinds} & {"PINNED", "PAGEABLE"}
    where = f" ({' -> '.join(kind.capitalize() for kind in kinds)})" if kinds else ""
    return Copy(
        name=f"Memcpy {direction[1]}to{direction[2]}{where}",
        size_bytes=size_bytes,
        direction=_DIRECTIONS.get(f"{direction[1]}2{direction[2]}", Direction.NONE),
        host_memory=HostMemory["PAGEABLE" if "PAGEABLE" in memory else "PINNED"] if memory else HostMemory.UNKNOWN,
    )


def set_bytes(details: str) -> int:
    """Bytes that a memset filled, from its `Memset_details`."""
    size = _SET_SIZE.search(details)
    return int(size[1]) if size else NO_SIZE
