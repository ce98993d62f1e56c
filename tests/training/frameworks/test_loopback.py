"""Test that TensorFlow's servers with the preloaded library use the loopback address and serve only their user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpudiag.errors import FrameworkMissingError
from gpudiag.training.frameworks.tensorflow.framework import preload
from tests.other_user import as_another_user, needs_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="a library for Linux")]

#: This program binds every interface and greets every accepted connection.
_SERVER = """
import socket, sys
family = socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET
server = socket.socket(family)
if family == socket.AF_INET6:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("", 0))
server.listen()
print(*server.getsockname()[:2], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello")
    connection.close()
"""


@pytest.fixture(params=["4", "6"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Yield the address and port of a server with the preloaded library, on IPv4 and on IPv6."""
    try:
        library = preload(tmp_path, None)
    except FrameworkMissingError:
        pytest.skip("there is no C compiler")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, request.param],
        stdout=subprocess.PIPE,
        env={**os.environ, "LD_PRELOAD": library},
        text=True,
    )
    assert process.stdout is not None
    host, port = process.stdout.readline().split()
    yield host, int(port)
    process.kill()
    process.wait()
    process.stdout.close()


def greeting(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        return connection.recv(100).decode()


def test_own_user_is_served_on_loopback_address(server: tuple[str, int]) -> None:
    host, port = server
    assert host in {"127.0.0.1", "::ffff:127.0.0.1"}
    assert greeting(port) == "hello"


@needs_root
def test_another_user_is_not_served(server: tuple[str, int]) -> None:
    _, port = server
    assert as_another_user(lambda: greeting(port)) in {"", "ConnectionResetError"}
    assert greeting(port) == "hello"  # the server continues
