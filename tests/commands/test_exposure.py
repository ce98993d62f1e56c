"""Test what a second account can access of running commands: no file, and no listener other than gloo.

gloo listens on the loopback address and accepts every connection, because it has no option for authentication. gloo's
listeners do not unpickle data and hold no keys. A `TCPStore` server would answer a store query; the test checks that no
listener answers.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 # the second account may not be able to read this Python's files
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli_process import SECONDS, environment
from tests.listeners import beyond_loopback, listening_sockets
from tests.other_user import as_another_user, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes"), needs_root]

#: The handshake of PyTorch's TCPStore (VALIDATE with its magic number) and a query without arguments (GETNUMKEYS).
_STORE_QUERY = struct.pack("=BIB", 0, 0x3C85F7CE, 7)
_ANSWER_S = 0.2
_EVERY_S = 0.25

_SERVES_A_STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def answering(sockets: Collection[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the (address, port) pairs that answer the query of a TCPStore's client."""
    answering = []
    for address, port in sockets:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=_ANSWER_S) as connection:
            connection.sendall(_STORE_QUERY)
            if connection.recv(8):
                answering.append((address, port))
    return sorted(answering)


def reachable(paths: Collection[Path]) -> list[str]:
    """Return the paths on which any attempt succeeds: opening a file, connecting to a socket, listing a directory."""
    return sorted(str(path) for path in paths if any(_succeeds(attempt) for attempt in _attempts(path)))


def _attempts(path: Path) -> Iterator[Callable[[], object]]:
    """Yield the ways in which another user may access a path."""
    yield partial(_connect, path)
    yield partial(_open, path, "ab")
    yield partial((path / "new").touch)
    # PyTorch creates this directory, with or without gpudiag. Other users can list this directory but cannot write to
    # it.
    if not any(part.startswith("torchinductor_") for part in path.parts):
        yield partial(_open, path, "rb")
        yield partial(_list, path)


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def _open(path: Path, mode: str) -> None:
    if not stat.S_ISFIFO(path.stat().st_mode):
        with path.open(mode):
            pass


def _list(path: Path) -> None:
    list(path.iterdir())


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Yield a temporary directory that every user may read, so that only file modes deny access."""
    place = Path(tempfile.mkdtemp(prefix="exposure-", dir="/tmp"))  # pytest's directory is private
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_attempts_reach_a_tcp_store_and_open_files(temporary: Path) -> None:
    """Each attempt succeeds on an open target. Otherwise a failure of the attempt would prove nothing."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVES_A_STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline())
    sockets = listening_sockets(server.pid)
    assert {number for _, number in sockets} == {port}
    assert as_another_user(lambda: len(answering([("127.0.0.1", port)]))) == "1"
    server.communicate("", timeout=SECONDS)
    (temporary / "open").write_text("")
    (temporary / "closed").write_text("")
    (temporary / "closed").chmod(0o600)
    everything = sorted(temporary.iterdir())
    assert as_another_user(lambda: reachable(everything)) == str([str(temporary / "open")])


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(
            ("profile", "mlp", "--devices", "2", "--warmup", "3", "--steps", "5", "--output", "out"), id="profile"
        ),
        pytest.param(
            (
                "scale",
                "mlp",
                "--quick",
                "--devices",
                "2",
                "--strategies",
                "gloo",
                "--profile",
                "none",
                "--output",
                "out",
            ),
            id="scale",
            marks=pytest.mark.long,
        ),
        pytest.param(("bandwidth", "--quick"), id="bandwidth"),
        pytest.param(("recommend", "mlp", "--budget", "20"), id="recommend", marks=pytest.mark.long),
        pytest.param(("selftest", "--quick", "--faults", "none"), id="selftest", marks=pytest.mark.long),
    ],
)
def test_another_account_reaches_only_gloo(words: tuple[str, ...], temporary: Path, tmp_path: Path) -> None:
    changes = {"TMPDIR": str(temporary), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpudiag", *words],
        cwd=tmp_path,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    sockets: set[tuple[str, int]] = set()
    paths: set[Path] = set()
    until = time.monotonic() + SECONDS
    while run.poll() is None and time.monotonic() < until:
        new_sockets = listening_sockets(run.pid) - sockets
        new_paths = set(temporary.rglob("*")) - paths
        sockets |= new_sockets
        paths |= new_paths
        assert not beyond_loopback({address for address, _ in new_sockets})
        assert as_another_user(partial(answering, new_sockets)) == "[]"
        assert as_another_user(partial(reachable, new_paths)) == "[]"
        time.sleep(_EVERY_S)
    out = run.communicate(timeout=SECONDS)[0]
    assert run.returncode in {0, 1} if words[0] == "selftest" else run.returncode == 0, (
        out
    )  # exit code 1 means that a row of the selftest is wrong
    assert sockets, "no listener of gloo was tried"
    assert any(path.parent != temporary for path in paths), "no file of the store was tried"
    left = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    assert left == []
