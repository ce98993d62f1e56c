"""Receive progress messages of training processes, and measure the time without messages."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path

import msgspec

from gpudiag.training.session.progress import Progress

#: Size of the receive buffer in bytes. Every message is smaller.
_MAX_BYTES = 65536


class Listener:
    """Receive progress messages on a datagram socket.

    Attributes:
        latest: the last message of each rank, by rank.
        failures: messages of failed ranks, in order of arrival.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._news_s = time.monotonic()
        self.latest: dict[int, Progress] = {}
        self.failures: list[Progress] = []

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self, timeout_s: float) -> list[Progress]:
        """Return the messages that have arrived. Wait at most `timeout_s` for the first message."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        messages: list[Progress] = []
        while True:
            try:
                message = msgspec.json.decode(self._socket.recv(_MAX_BYTES), type=Progress)
            except BlockingIOError:
                return messages
            except msgspec.DecodeError:
                continue
            messages.append(message)
            if self.latest.get(message.rank) != message:
                self._news_s = time.monotonic()
            self.latest[message.rank] = message
            if message.phase == "failed":
                self.failures.append(message)

    def silent_s(self) -> float:
        """Return the seconds since any rank last sent a message that differed from the rank's previous message."""
        return time.monotonic() - self._news_s
