"""What a training process tells the program that started it, while it runs.

Each message is one datagram on a private Unix socket: whole or not at all, and a listener that is gone or slow costs
the training nothing. A message says all there is to know, so that a lost one is made good by the next.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Literal

from gpudiag.model.structs import msgspec

#: Names the socket; unset when nobody listens.
SOCKET_VARIABLE = "GPUDIAG_PROGRESS_SOCKET"

#: Least seconds between two messages of one phase.
_EVERY_S = 0.2

Phase = Literal["starting", "warmup", "timed", "profiled", "saving", "done", "failed"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one rank is. `steps` counts within the phase; `of` is how many it will have, None where unknown.

    `exit_code`, `error` and `hint` are set in phase `failed` only, with the meaning they have in `gpudiag.errors`;
    `note` is what the user should know although the run goes on; `fetching_ms` what fetching the last batches took, in
    the mean, where that is known.
    """

    rank: int
    pid: int
    phase: Phase
    steps: int = 0
    of: int | None = None
    error: str | None = None
    hint: str | None = None
    exit_code: int = 5
    note: str | None = None
    fetching_ms: float | None = None


class ProgressSender:
    """Sends this rank's progress to `GPUDIAG_PROGRESS_SOCKET`, or nowhere when that is not set."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._address = os.environ.get(SOCKET_VARIABLE)
        self._next_s = 0.0
        self._phase: Phase | None = None
        self._note: str | None = None

    def tell(
        self,
        phase: Phase,
        steps: int = 0,
        of: int | None = None,
        *,
        fetching_ms: Callable[[], float | None] | None = None,
    ) -> None:
        """Say how far it is; within a phase at most five times a second. `fetching_ms` is asked only then."""
        if not self._address:
            return
        now = time.monotonic()
        if phase == self._phase and now < self._next_s:
            return
        self._phase, self._next_s = phase, now + _EVERY_S
        fetching = None if fetching_ms is None else fetching_ms()
        self._send(
            Progress(
                rank=self._rank,
                pid=os.getpid(),
                phase=phase,
                steps=steps,
                of=of,
                note=self._note,
                fetching_ms=fetching,
            )
        )

    def note(self, words: str) -> None:
        """Say something with all messages from now on."""
        self._note, self._next_s = words[:2000], 0.0

    def fail(self, error: str, *, hint: str | None = None, exit_code: int = 5) -> None:
        """Say that this rank has failed, and why."""
        message = Progress(
            rank=self._rank,
            pid=os.getpid(),
            phase="failed",
            error=error[:2000],
            hint=hint,
            exit_code=exit_code,
        )
        self._send(message)

    def _send(self, message: Progress) -> None:
        if not self._address:
            return
        # A socket for each message costs some microseconds, five times a second, and leaves nothing open.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(msgspec.json.encode(message), self._address)
