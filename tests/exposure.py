"""Run a command, and try meanwhile to access its listeners and temporary files from a second account.

gloo listens on the loopback address and accepts every connection, because it has no option for authentication. gloo's
listeners do not unpickle data and hold no keys. A `TCPStore` server, in contrast, would answer a query.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 # the second account may not be able to read this Python's files
import os
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.cli_process import SECONDS, environment
from tests.listeners import beyond_loopback, listening_sockets
from tests.other_user import as_another_user

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

#: The handshake of PyTorch's TCPStore (VALIDATE with its magic number) and a query without arguments (GETNUMKEYS).
_STORE_QUERY = struct.pack("=BIB", 0, 0x3C85F7CE, 7)
_ANSWER_S = 0.2
_EVERY_S = 0.4
#: Start of the name of the temporary directory.
_PUBLIC = "exposure-"


class Watched(NamedTuple):
    """Result of a command that has ended, with its listeners and files.

    Attributes:
        sockets: (address, port) of each listener of the command and its descendants.
        paths: everything that was in the temporary directory.
        reached: listeners that other machines can reach, and, if this process is root, what the second account reached.
        left: names that the command left in the temporary directory.
    """

    result: subprocess.CompletedProcess[str]
    sockets: frozenset[tuple[str, int]]
    paths: frozenset[Path]
    reached: tuple[str, ...]
    left: tuple[str, ...]

    def check(self) -> None:
        """Assert that listeners and private files existed, the second account reached none, and no file is left."""
        assert self.reached == ()
        assert self.sockets, "no listener of gloo was tried"
        # Private files are in subdirectories of the public directory.
        assert any(not path.parent.name.startswith(_PUBLIC) for path in self.paths), "no file of the store was tried"
        assert self.left == ()


def run_watched(*command: str, cwd: Path | None = None, **changes: str) -> Watched:
    """Run a command whose temporary directory every user may read, so that only the modes of its files deny access.

    Meanwhile, check the address of each new listener and, as root, access each new listener and file as another user.
    """
    sockets: set[tuple[str, int]] = set()
    paths: set[Path] = set()
    reached: list[str] = []
    with public_directory() as temporary, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        values = environment(TMPDIR=str(temporary), **changes)
        run = subprocess.Popen(command, cwd=cwd, env=values, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        until = time.monotonic() + SECONDS
        while run.poll() is None and time.monotonic() < until:
            new_sockets = listening_sockets(run.pid) - sockets
            new_paths = set(temporary.rglob("*")) - paths
            sockets |= new_sockets
            paths |= new_paths
            reached += beyond_loopback({address for address, _ in new_sockets})
            if os.getuid() == 0 and (new_sockets or new_paths):
                answer = as_another_user(lambda: [*answering(new_sockets), *reachable(new_paths)])  # noqa: B023
                reached += [answer] if answer != "[]" else []
            time.sleep(_EVERY_S)
        run.kill()
        code = run.wait()
        left = tuple(path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_"))
        out.seek(0)
        err.seek(0)
        result = subprocess.CompletedProcess(command, code, out.read(), err.read())
    return Watched(result, frozenset(sockets), frozenset(paths), tuple(reached), left)


@contextlib.contextmanager
def public_directory() -> Iterator[Path]:
    """Make a directory that every user may read. pytest's directory is private."""
    place = Path(tempfile.mkdtemp(prefix=_PUBLIC, dir="/tmp"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


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
    """Yield the attempts of another user to access a path."""
    yield partial(_connect, path)
    yield partial(_open, path, "ab")
    yield partial((path / "new").touch)
    # PyTorch creates directories with the prefix `torchinductor_`, with or without gpudiag. Other users can list such a
    # directory but cannot write to it.
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
