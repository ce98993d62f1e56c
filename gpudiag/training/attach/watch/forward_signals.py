"""While the command runs, the signals that gpudiag gets are the command's: it is what the sender means.

A scheduler sends SIGUSR1 for a checkpoint and SIGTERM before the time is up, `timeout` sends SIGTERM, a user `kill`s.
Ctrl-C and Ctrl-\\ in a terminal reach the command by themselves, as it belongs to the same process group. The kernel
says who sent a signal (`si_code`), so that those are not sent twice.
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
#: Of a signal that no process has sent but the kernel, as a terminal makes it do.
_SI_KERNEL = 0x80


class SignalForwarder:
    """Takes signals from before the command starts, and hands them on once it is there."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._came: list[int] = []
        self._waited_for: set[int] = set()
        #: The signals that were handed on.
        self.forwarded: list[int] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Take the signals that are not ignored, as under nohup; the command inherits that."""
        before = {}
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._take)
        try:
            yield
        finally:
            if self._waited_for:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, self._waited_for)
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """The command has started, with no signal blocked: from now on who sends one can be asked for."""
        self._process = process
        if hasattr(signal, "sigtimedwait"):
            self._waited_for = {number for number in FORWARDED if signal.getsignal(number) == self._take}
            signal.pthread_sigmask(signal.SIG_BLOCK, self._waited_for)

    def forward(self) -> None:
        """Hand on what has come. To be called some times a second, in the main thread."""
        while self._waited_for and (came := signal.sigtimedwait(self._waited_for, 0)) is not None:
            if came.si_code != _SI_KERNEL:
                self._came.append(came.si_signo)
        while self._came and self._process is not None:
            number = self._came.pop(0)
            self.forwarded.append(number)
            with contextlib.suppress(OSError):
                self._process.send_signal(number)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
