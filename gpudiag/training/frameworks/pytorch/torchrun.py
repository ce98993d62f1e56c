"""Run torchrun for several nodes, with stores that listen on one address only and sign their state.

    python torchrun.py TORCHRUN'S ARGUMENTS...

PyTorch's stores listen on every network interface, and have no authentication. torchrun unpickles the value of a key
with a known name, so another host could run code here. This program makes a store listen only on the address of its
`host_name`. The program also signs the pickled value (HMAC) with the secret that the nodes share. The file runs as a
script, because its interpreter may not have gpudiag.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

#: Maximum number of connections that wait to be accepted, as in PyTorch.
_BACKLOG = 2048
#: Variable with the secret that the nodes share.
_SECRET = "GPUDIAG_SECRET"  # noqa: S105 # the name of a variable
#: Prefix of keys under which torchrun's c10d backend keeps its state, pickled, as base64.
_STATE = "torch.rendezvous."


def stores_on_their_hosts() -> None:
    """Make each TCPStore that this process serves from now on listen only on the address of its `host_name`."""
    from torch import distributed
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous
    from torch.distributed.elastic.utils import distributed as elastic

    # `torch.distributed.rendezvous` is a function of the same name as the module, so `import_module` is needed.
    meeting = importlib.import_module("torch.distributed.rendezvous")
    plain: Any = distributed.TCPStore  # type: ignore[attr-defined]  # not in its `__all__`
    if getattr(plain, "on_its_host", False):
        return

    class TCPStore(plain):  # type: ignore[misc]
        """A TCPStore that listens on one address only, and signs the state that torchrun unpickles."""

        on_its_host = True

        def __init__(self, host_name: str, port: int = 0, *rest: Any, **more: Any) -> None:
            is_master = rest[1] if len(rest) > 1 else more.get("is_master", False)  # the fourth argument
            if is_master and more.get("master_listen_fd") is None:
                port, more["master_listen_fd"] = _listening(host_name, port)
            super().__init__(host_name, port, *rest, **more)

        def get(self, key: str) -> bytes:
            value: bytes = super().get(key)
            return opened(key, value) if _is_state(key) else value

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            if not _is_state(key):
                value: bytes = super().compare_set(key, expected, desired)
                return value
            return opened(key, super().compare_set(key, signed(key, expected), signed(key, desired)))

    for module in (distributed, meeting, c10d_rendezvous_backend, static_tcp_rendezvous, elastic):
        if hasattr(module, "TCPStore"):  # depends on the version of PyTorch
            module.TCPStore = TCPStore  # type: ignore[attr-defined]


def _is_state(key: str) -> bool:
    return key.startswith(_STATE) and bool(os.environ.get(_SECRET))


def signed(key: str, text: str) -> str:
    """Return base64 text followed by "." and its signature. Empty text means "no state", and gets no signature."""
    return f"{text}.{_signature(key, text)}" if text else text


def opened(key: str, value: bytes) -> bytes:
    """Return the text of a signed value of `key`; raise RuntimeError if the signature is missing or wrong."""
    text, _, signature = value.decode("ascii", "replace").partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(key, text).encode()):
        raise RuntimeError(f"the state of the rendezvous was written by somebody who does not know {_SECRET}")
    return text.encode()


def _signature(key: str, text: str) -> str:
    return hmac.new(os.environ[_SECRET].encode(), f"{key} {text}".encode(), "sha256").hexdigest()


def _listening(host: str, port: int) -> tuple[int, int]:
    """Return (port, file descriptor) of a socket that listens on `host`. The store will close the socket.

    Raises:
        RuntimeError: the address cannot be used, for example because another process listens on it. PyTorch's store
            raises RuntimeError in this case too.
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
    """Run torchrun with the changed stores."""
    # Python has put this file's folder on `sys.path`. Remove the folder, so that nothing imports modules from it.
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    from torch.distributed.run import main as torchrun

    stores_on_their_hosts()
    torchrun()


if __name__ == "__main__":
    main()
