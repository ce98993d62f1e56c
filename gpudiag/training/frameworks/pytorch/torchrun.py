"""torchrun whose stores listen only where the processes meet: on one node the loopback address.

    python torchrun.py TORCHRUN'S ARGUMENTS...

PyTorch's stores listen on every interface, whatever address they are given, ask nobody who they are, and torchrun
unpickles what lies in one under a known key. Here a store that serves is handed a socket that is bound to its own
host's address. Is run as a file, by an interpreter that need not have gpudiag.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
from pathlib import Path
from typing import Any

#: As many as PyTorch's own listening socket has.
_BACKLOG = 2048


def stores_on_their_hosts() -> None:
    """From now on each TCPStore that this process serves listens on the address of its `host_name` alone."""
    from torch import distributed
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous
    from torch.distributed.elastic.utils import distributed as elastic

    # `torch.distributed.rendezvous` is a function of that module by the attribute of its package.
    meeting = importlib.import_module("torch.distributed.rendezvous")
    plain: Any = distributed.TCPStore  # type: ignore[attr-defined]  # whose stores are not in its `__all__`
    if getattr(plain, "on_its_host", False):
        return

    class TCPStore(plain):  # type: ignore[misc]
        """PyTorch's, with a socket of our own where it serves."""

        on_its_host = True

        def __init__(self, host_name: str, port: int = 0, *rest: Any, **more: Any) -> None:
            is_master = rest[1] if len(rest) > 1 else more.get("is_master", False)
            if is_master and more.get("master_listen_fd") is None:
                port, more["master_listen_fd"] = _listening(host_name, port)
            super().__init__(host_name, port, *rest, **more)

    for module in (distributed, meeting, c10d_rendezvous_backend, static_tcp_rendezvous, elastic):
        if hasattr(module, "TCPStore"):  # which of them have it depends on the version
            module.TCPStore = TCPStore  # type: ignore[attr-defined]


def _listening(host: str, port: int) -> tuple[int, int]:
    """(port, descriptor) of a socket that listens on this host's address; the store owns and closes it.

    Raises:
        RuntimeError: it cannot, as PyTorch's own does where another process serves there.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
            bound: int = listener.getsockname()[1]
            return bound, listener.detach()
    except OSError as error:
        raise RuntimeError(f"no store can listen on {host}, port {port}: {error.strerror or error}") from error


def main() -> None:
    """Run torchrun."""
    # A file's folder comes first where modules are looked for; what lies beside this one is nobody else's.
    sys.path[:] = [place for place in sys.path if place != str(Path(__file__).parent)]
    from torch.distributed.run import main as torchrun

    stores_on_their_hosts()
    torchrun()


if __name__ == "__main__":
    main()
