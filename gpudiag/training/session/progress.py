"""Send progress messages from a running training process to the program that started it.

Each message is one datagram on a private Unix socket. A datagram arrives whole or not at all, and an absent or slow
listener does not delay the training. Each message contains the rank's complete state, so a lost message does no harm.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Literal

from gpudiag.model.structs import msgspec

#: Environment variable with the path of the socket; unset if there is no listener.
SOCKET_VARIABLE = "GPUDIAG_PROGRESS_SOCKET"

#: Minimum seconds between two messages of one phase.
_INTERVAL_S = 0.2
#: Maximum length of a note or an error, because a datagram has a maximum size.
_MAX_CHARACTERS = 2000

#: Phases of a rank, in order.
Phase = Literal["starting", "warmup", "timed", "lines", "profiled", "saving", "done", "failed"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one rank.

    Attributes:
        steps: number of completed steps of the phase.
        of: number of all steps of the phase; None if unknown.
        error, hint, exit_code: see `gpudiag.errors`; used only in phase `failed`.
        note: a warning for the user about a run that continues; None without a warning.
        fetching_ms: mean time to fetch recent batches, in ms; None if unknown.
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
    """Send this rank's progress to the socket in `GPUDIAG_PROGRESS_SOCKET`. If the variable is not set, do nothing."""

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
        fetching_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Report `steps` of `of` (None: unknown) steps of a phase as completed, at most five times a second in a phase.

        `fetching_ms` returns the mean time to fetch a batch in ms. The function is called only if a message is sent.
        """
        if not self._address:
            return
        now = time.monotonic()
        if phase == self._phase and now < self._next_s:
            return
        self._phase, self._next_s = phase, now + _INTERVAL_S
        self._send(
            Progress(
                rank=self._rank,
                pid=os.getpid(),
                phase=phase,
                steps=steps,
                of=of,
                note=self._note,
                fetching_ms=fetching_ms(),
            )
        )

    def note(self, sentence: str) -> None:
        """Add a warning to all messages from now on, and let `tell` send the next message without delay."""
        self._note, self._next_s = sentence[:_MAX_CHARACTERS], 0.0

    def fail(self, error: str, *, hint: str | None = None, exit_code: int = 5) -> None:
        """Report that this rank has failed, with the reason."""
        error = error[:_MAX_CHARACTERS]
        self._send(
            Progress(rank=self._rank, pid=os.getpid(), phase="failed", error=error, hint=hint, exit_code=exit_code)
        )

    def _send(self, message: Progress) -> None:
        if not self._address:
            return
        # Opening the socket for each message takes a few microseconds, and keeps no file open.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(msgspec.json.encode(message), self._address)


def send_note(rank: int, sentence: str) -> None:
    """Report a warning of a rank whose session has not begun."""
    sender = ProgressSender(rank)
    sender.note(f"rank {rank}: {sentence}")
    sender.tell("starting")
