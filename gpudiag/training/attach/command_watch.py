"""Watch a command while it runs: receive its messages, forward signals to it, and observe how its processes end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from gpudiag.training.attach.command_process import ProcessReport
from gpudiag.training.launch.failure_cause import is_stopped, name_ranks
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session.progress import Progress

#: Limits on the size and the number of the processes' reports, far above usual values.
_MAX_REPORT_BYTES = 16384
_MAX_REPORTS = 20000

#: Longest wait for messages, in seconds. After each wait, signals are forwarded and the command's end is checked.
_RECEIVE_S = 0.1
#: Seconds between two checks of the command's processes.
_CHECK_S = 1.0
#: A process that is stopped (SIGSTOP) at this many consecutive checks is reported.
_STOPPED_CHECKS = 3
#: If the command is to stop after the measurement, seconds in which it may exit by itself before it is terminated.
_AFTER_STOP_S = 30.0

#: Signals that are forwarded to the command.
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
#: `si_code` of a signal that the kernel sent, for example on behalf of a terminal.
_SI_KERNEL = 0x80

#: Longest wait for the end of a process, in milliseconds, before new processes are observed.
_POLL_MS = 50
#: Maximum number of processes whose ends are observed, because each needs an open file descriptor.
_MAX_PROCESSES = 512


class Hooks(NamedTuple):
    """Functions that are called for each message, for each warning, and once when all ranks are measured."""

    on_message: Callable[[Progress], None]
    on_warning: Callable[[str], None]
    on_measured: Callable[[], None]


class CommandWatch:
    """Watch one running command, whose processes write their reports into the directory `reports`.

    `listener` receives their messages, `deaths` observes their ends, and `signals` forwards signals to the command.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        listener: Listener,
        hooks: Hooks,
        *,
        deaths: DeathWatch,
        signals: SignalForwarder,
        reports: Path,
    ) -> None:
        self._process, self._listener, self._deaths = process, listener, deaths
        self._signals, self._reports, self._hooks = signals, reports, hooks
        self._known: list[ProcessReport] = []
        self._next_check_s = 0.0
        #: Number of consecutive checks at which a process was stopped, by pid; `_STOPPED_CHECKS + 1` after the warning.
        self._stopped: Counter[int] = Counter()
        self._measured = False

    def run(self, *, stop: bool) -> int:
        """Watch the command to its end. Return its exit code, or 128 plus the number of the signal that ended it.

        With `stop`, the command may run on for `_AFTER_STOP_S` seconds after all ranks are measured. If it has not
        exited then, it is terminated and 0 is returned.
        """
        done_s: float | None = None
        while self._process.poll() is None:
            for message in self._listener.receive(_RECEIVE_S):
                self._hooks.on_message(message)
            self._signals.forward()
            self._check_processes()
            if not self._all_done():
                continue
            if not self._measured:
                self._measured = True
                self._hooks.on_measured()
            if stop:
                done_s = done_s or time.monotonic()
                if time.monotonic() - done_s > _AFTER_STOP_S:
                    self._process.terminate()
                    self._process.wait()
                    return 0
        for message in self._listener.receive(0.0):
            self._hooks.on_message(message)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _all_done(self) -> bool:
        """Return whether all ranks of this node that train have reported that they are measured."""
        latest = self._listener.latest
        if self._measured or not latest:
            return self._measured
        if any(message.phase != "done" for message in latest.values()):
            return False
        # Ranks on other nodes write no reports here. A process that a launcher has numbered must be measured, even if
        # it has taken no optimizer step yet.
        expected = {report.rank for report in self._known if report.calls or (report.numbered and not report.helper)}
        return expected <= latest.keys()

    def _check_processes(self) -> None:
        """Once per `_CHECK_S`, read the reports, observe new processes, and warn of stopped processes."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_S
        self._known = read_reports(self._reports)
        self._deaths.watch(report.pid for report in self._known)
        if is_stopped(self._process.pid):
            return  # the user has stopped the whole job with Ctrl-Z
        stopped = [report for report in self._known if not report.helper and self._newly_stopped(report.pid)]
        ranks = [report.rank for report in stopped]
        if stopped and any(report.rank not in ranks for report in self._known):  # else no rank waits for them
            # Include the helpers of these ranks, which may be stopped too. CONT has no effect on a running process.
            pids = " ".join(str(report.pid) for report in self._known if report.rank in ranks)
            self._hooks.on_warning(
                f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} stopped (SIGSTOP, or a debugger), and the "
                f"other ranks wait: to continue, kill -CONT {pids}"
            )

    def _newly_stopped(self, pid: int) -> bool:
        """Return whether a process was stopped at `_STOPPED_CHECKS` consecutive checks; True only once per process."""
        if self._stopped[pid] > _STOPPED_CHECKS:
            return False
        self._stopped[pid] = self._stopped[pid] + 1 if is_stopped(pid) else 0
        if self._stopped[pid] < _STOPPED_CHECKS:
            return False
        self._stopped[pid] = _STOPPED_CHECKS + 1
        return True


def read_reports(folder: Path) -> list[ProcessReport]:
    """Return the readable reports, sorted by rank."""
    reports = []
    for path in sorted(folder.glob("*.json"))[:_MAX_REPORTS]:
        with contextlib.suppress(OSError, msgspec.MsgspecError), path.open("rb") as file:
            reports.append(msgspec.json.decode(file.read(_MAX_REPORT_BYTES), type=ProcessReport))
    # If a launcher has set RANK for some processes, a process without RANK and without calls is the launcher itself.
    if any(report.numbered for report in reports):
        reports = [replace(report, helper=report.helper or not (report.numbered or report.calls)) for report in reports]
    return sorted(reports, key=lambda report: (report.rank, report.pid))


class SignalForwarder:
    """Catch signals to gpudiag, also before the command starts, and forward them to the command once it runs.

    Such signals come from a scheduler (SIGUSR1 for a checkpoint, SIGTERM before the time limit), from `timeout`, or
    from a user's `kill`. Ctrl-C and Ctrl-\\ in a terminal reach the whole process group, so the command receives them
    itself. Therefore signals that the kernel sent (`_SI_KERNEL`) are not forwarded, if `sigtimedwait` shows the sender.

    Attributes:
        forwarded: numbers of the forwarded signals.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._received: list[int] = []
        self._blocked: set[int] = set()
        self.forwarded: list[int] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Catch signals within the block. Skip ignored signals (as under nohup): the command ignores them too."""
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
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to this process from now on.

        The signals are blocked and received with `sigtimedwait`, which also returns the sender. The process must have
        started before this call; otherwise it would inherit the blocked signals.
        """
        self._process = process
        if hasattr(signal, "sigtimedwait"):
            self._blocked = {number for number in FORWARDED if signal.getsignal(number) == self._take}
            signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)

    def forward(self) -> None:
        """Forward the received signals. Call this method several times a second in the main thread."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a process: its time in seconds of `time.time`, and its wait status, or None if unknown."""

    ended_s: float
    status: int | None

    @property
    def signal(self) -> int | None:
        """The signal that ended the process; None if it exited by itself, or if this is unknown."""
        return self.status & 0x7F or None if self.status is not None else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None if a signal ended it, or if this is unknown."""
        return self.status >> 8 if self.status is not None and not self.signal else None


class DeathWatch:
    """Observe in a separate thread when and how processes end, even if they are not children of this process.

    A process that a signal ends cannot report the signal, and the other ranks only report broken connections. On Linux,
    the file descriptor of a process (pidfd) becomes readable when the process ends. `/proc/PID/stat` contains the exit
    status until the parent reaps the process. Launchers reap about ten times a second, so the status is usually found;
    otherwise only the time of the end is known. On systems without pidfd no ends are observed.

    Attributes:
        deaths: observed ends, by process number.
    """

    def __init__(self) -> None:
        self._poll = select.poll() if hasattr(os, "pidfd_open") else None
        self._watched: dict[int, int] = {}  # process number by file descriptor
        self._known: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpudiag-deaths", daemon=True)
        self.deaths: dict[int, Death] = {}

    def __enter__(self) -> DeathWatch:
        # The new thread inherits the blocked signals. So the main thread receives and forwards all signals.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched = {}

    def watch(self, pids: Iterable[int]) -> None:
        """Observe further processes. Processes that are observed already are skipped."""
        for pid in pids:
            if self._poll is None or pid in self._known or len(self._watched) >= _MAX_PROCESSES:
                continue
            self._known.add(pid)
            with contextlib.suppress(OSError):  # the process has ended already, or is on another host
                descriptor = os.pidfd_open(pid)
                self._watched[descriptor] = pid
                self._poll.register(descriptor, select.POLLIN)

    def _run(self) -> None:
        while self._poll is not None and not self._over.is_set():
            for descriptor, _ in self._poll.poll(_POLL_MS):
                pid = self._watched.get(descriptor)
                self._poll.unregister(descriptor)
                if pid is not None:
                    self.deaths[pid] = Death(ended_s=time.time(), status=_wait_status(pid))


def _wait_status(pid: int) -> int | None:
    """Return the wait status of an ended process; None if its parent has reaped it already."""
    try:
        # The name in parentheses may contain anything. The wait status is the last field. State Z is a zombie: the
        # process has ended, and its parent has not reaped it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(fields[-1]) if fields[0] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None
