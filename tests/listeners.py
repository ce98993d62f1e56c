"""List the listening sockets of a process and its descendants from /proc, as `ss -ltnp` does."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTENS = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_EVERY_S = 0.5


@contextlib.contextmanager
def listeners_meanwhile() -> Iterator[set[str]]:
    """Collect each address on which a descendant of this process listens while the block runs."""
    addresses: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(_EVERY_S):
            addresses.update(listeners(os.getpid()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield addresses
    finally:
        over.set()
        looking.join()


def beyond_loopback(addresses: set[str]) -> set[str]:
    """Return the addresses in `addresses` that other machines can reach."""
    return {text for text in addresses if not _is_loopback(ipaddress.ip_address(text))}


def listeners(pid: int) -> set[str]:
    """Return the addresses on which a process and its descendants listen now."""
    return {address for address, _ in listening_sockets(pid)}


def listening_sockets(pid: int) -> set[tuple[str, int]]:
    """Return (address, port) of every TCP socket on which a process and its descendants listen now.

    Processes and sockets that end during the search are skipped.
    """
    inodes: set[str] = set()
    for descendant in _descendants(pid):
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{descendant}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if match := _SOCKET.match(str(entry.readlink())):
                        inodes.add(match[1])
    return {(address, port) for address, port, inode in _listening() if inode in inodes}


def _listening() -> list[tuple[str, int, str]]:
    """Return (address, port, inode) of every listening socket of this network namespace."""
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENS:
                address, _, port = words[1].partition(":")
                addresses.append((_address(address), int(port, 16), words[9]))
    return addresses


def _address(text: str) -> str:
    """Parse an address, which the kernel writes as words in the machine's byte order."""
    raw = b"".join(struct.pack("=I", int(text[begin : begin + 8], 16)) for begin in range(0, len(text), 8))
    return str(ipaddress.ip_address(raw))


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _descendants(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(one := waiting.pop())
        waiting += parents.get(one, [])
    return found
