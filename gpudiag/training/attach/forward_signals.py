"""Forward signals that gpudiag receives to the command while it runs, because the sender means the command.

A scheduler sends SIGUSR1 for a checkpoint and SIGTERM before the time is up, `timeout` sends SIGTERM, a user `kill`s.
Ctrl-C and Ctrl-\\ in a terminal reach the command by themselves, because it belongs to the same process group. The
kernel says who sent a signal (`si_code`), so that those are not sent twice.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from types import FrameType

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
#: `si_code` of a signal that the kernel sent, as for a terminal, and no process.
_SI_KERNEL = 0x80


class SignalForwarder:
    """Catch signals from before the command starts, and forward them once it runs.

    Attributes:
        forwarded: the signals that were forwarded.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._received: list[int] = []
        self._blocked: set[int] = set()
        self.forwarded: list[int] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Catch the signals that are not ignored, as under nohup; the command inherits that."""
        before = {}
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._take)
        try:
            yield
        finally:
            if self._blocked:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, self._blocked)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Block the signals and wait for them from now on, because waiting tells who sent them.

        The command has started with no signal blocked.
        """
        self._process = process
        if hasattr(signal, "sigtimedwait"):
            self._blocked = {number for number in FORWARDED if signal.getsignal(number) == self._take}
            signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)

    def forward(self) -> None:
        """Forward the signals received. To be called some times a second, in the main thread."""
        while self._blocked and (received := signal.sigtimedwait(self._blocked, 0)) is not None:
            if received.si_code != _SI_KERNEL:
                self._received.append(received.si_signo)
        while self._received and self._process is not None:
            number = self._received.pop(0)
            self.forwarded.append(number)
            with contextlib.suppress(OSError):
                self._process.send_signal(number)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)
