"""Run TensorBoard so that it answers this user and root, but no other user of this host.

    python -P serve.py TENSORBOARD'S ARGUMENTS...

TensorBoard has no authentication, and a loopback address is open to every user of the host. Connections from other
hosts are answered, because they can exist only if the user has given an address that is not a loopback address.

This program is run as a file, and needs only the standard library and TensorBoard.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import socketserver
import struct
from pathlib import Path
from typing import Any

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))

Endpoint = tuple[str, int]


def is_admitted(connection: socket.socket) -> bool:
    """Return whether the other end of the connection belongs to this user or root, or is on another host.

    Another end on this host that is in no table of the kernel, or belongs to no process any more, is not admitted.
    """
    peer = _plain(connection.getpeername())
    is_local: bool = ipaddress.ip_address(peer[0]).is_loopback
    owners_are_known: bool = _TABLES[0].exists()  # only Linux shows the owner of a socket
    if not (is_local and owners_are_known):
        return True
    own_end = _plain(connection.getsockname())
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            # Words 1 and 2 are the local and the remote address of a socket, 7 its user, 9 its inode. The other end's
            # socket has the addresses of this end in reverse.
            words = line.split()
            if _endpoint(words[1]) == peer and _endpoint(words[2]) == own_end:
                # A socket without an inode belongs to no process any more.
                return int(words[9]) != 0 and int(words[7]) in {os.geteuid(), 0}
    return False


def _plain(address: tuple[Any, ...]) -> Endpoint:
    return _unmapped(ipaddress.ip_address(address[0].partition("%")[0])), int(address[1])


def _endpoint(text: str) -> Endpoint:
    """Return (address, port) from the kernel's text, which has the address as words in the machine's byte order."""
    address, _, port = text.partition(":")
    words = (int(address[begin : begin + 8], 16) for begin in range(0, len(address), 8))
    raw = b"".join(struct.pack("=I", word) for word in words)
    return _unmapped(ipaddress.ip_address(raw)), int(port, 16)


def _unmapped(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def main() -> None:
    """Run TensorBoard, whose server closes each connection that is not admitted."""
    from tensorboard.main import run_main  # noqa: PLC0415 # installed for this interpreter only

    def verify_request(self: socketserver.BaseServer, request: Any, client_address: Any) -> bool:  # noqa: ARG001
        return is_admitted(request)

    socketserver.BaseServer.verify_request = verify_request  # type: ignore[method-assign]
    run_main()


if __name__ == "__main__":
    main()
