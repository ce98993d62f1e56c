"""Hears what the training processes tell of their progress, and knows which of them is silent."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from types import TracebackType

import msgspec

from gpudiag.training.session.progress import Progress

#: Larger than any message.
_MOST_BYTES = 65536


class Listener:
    """A datagram socket in a directory that only this user can enter."""

    def __init__(self, path: Path, processes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._processes = processes
        self._heard_s = time.monotonic()
        #: The last message of each rank.
        self.latest: dict[int, Progress] = {}
        #: Failures in the order in which they came.
        self.failures: list[Progress] = []

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def receive(self, timeout_s: float) -> list[Progress]:
        """What has come, waiting at most this long for the first message."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        messages: list[Progress] = []
        while True:
            try:
                data = self._socket.recv(_MOST_BYTES)
            except BlockingIOError:
                break
            try:
                message = msgspec.json.decode(data, type=Progress)
            except msgspec.DecodeError:
                continue
            messages.append(message)
            if self.latest.get(message.rank) != message:
                self._heard_s = time.monotonic()
            self.latest[message.rank] = message
            if message.phase == "failed":
                self.failures.append(message)
        return messages

    def silent_s(self) -> float:
        """Seconds since any process told anything new."""
        return time.monotonic() - self._heard_s
