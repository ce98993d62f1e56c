"""Test that TensorBoard answers only the user who started it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

import pytest

from gpudiag.report.export.tensorboard.serve import is_admitted
from tests.other_user import as_another_user, needs_root


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("other", [False, pytest.param(True, marks=needs_root)])
def test_only_the_same_user_is_answered(host: str, other: bool) -> None:
    with closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"{host} is no address of this host")
        server.listen()
        admitted: list[bool] = []

        def accept() -> None:
            connection, _ = server.accept()
            admitted.append(is_admitted(connection))
            connection.sendall(b"hello")
            connection.close()

        accepting = threading.Thread(target=accept)
        accepting.start()

        def ask() -> str:
            with socket.create_connection(server.getsockname()[:2], timeout=20) as connection:
                return connection.recv(100).decode()

        assert (as_another_user(ask) if other else ask()) == "hello"
        accepting.join()
    assert admitted == [not other]
