"""Watch a command from its start to its end: receive its messages, forward signals, and detect stopped processes."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpudiag.training.attach.command_process import ProcessReport, read_reports
from gpudiag.training.attach.deaths import DeathWatch
from gpudiag.training.attach.forward_signals import SignalForwarder
from gpudiag.training.launch.failure_cause import is_stopped, name_ranks
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session.progress import Progress

_RECEIVE_S = 0.1
#: Seconds between two checks of the command's processes.
_CHECK_S = 1.0
#: A process that is stopped at so many consecutive checks is reported.
_STOPPED_CHECKS = 3
#: With `stop`, how long the command has to end by itself once all ranks are done.
_AFTER_STOP_S = 30.0


class Hooks(NamedTuple):
    """Called while the command runs: with each message, with each warning, and when everything is measured."""

    heard: Callable[[Progress], None]
    said: Callable[[str], None]
    measured: Callable[[], None]


class CommandWatch:
    """Watch one running command.

    Args:
        process: the command.
        listener: receives messages of its training processes.
        hooks: functions to call.
        deaths: observes ends of its processes.
        signals: forwards signals to the command.
        reports: directory of its processes' reports.
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
        self._process = process
        self._listener = listener
        self._deaths = deaths
        self._signals = signals
        self._reports = reports
        self._hooks = hooks
        self._known: list[ProcessReport] = []
        self._next_check_s = 0.0
        #: Consecutive checks at which each process was stopped; more than `_STOPPED_CHECKS` once it is reported.
        self._stopped: Counter[int] = Counter()
        self._measured = False

    def run(self, *, stop: bool) -> int:
        """Return the command's exit code, 128 more than the number of the signal that ended it.

        Args:
            stop: end the command when everything is measured, with exit code 0.
        """
        done_s: float | None = None
        while self._process.poll() is None:
            for message in self._listener.receive(_RECEIVE_S):
                self._hooks.heard(message)
            self._signals.forward()
            self._check_processes()
            if not self._all_done():
                continue
            if not self._measured:
                self._measured = True
                self._hooks.measured()
            if stop:
                done_s = done_s or time.monotonic()
                if time.monotonic() - done_s > _AFTER_STOP_S:
                    self._process.terminate()
                    self._process.wait()
                    return 0
        for message in self._listener.receive(0.0):
            self._hooks.heard(message)
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def _all_done(self) -> bool:
        latest = self._listener.latest
        if self._measured or not latest:
            return self._measured
        if any(message.phase != "done" for message in latest.values()):
            return False
        # Ranks on other nodes send no messages; a launcher's ranks have their numbers from the start.
        expected = {report.rank for report in self._known if report.calls or (report.numbered and not report.helper)}
        return expected <= latest.keys()

    def _check_processes(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_S
        self._known = read_reports(self._reports)
        self._deaths.watch(report.pid for report in self._known)
        if is_stopped(self._process.pid):
            return  # the user has stopped the whole job, with Ctrl-Z, and knows it
        stopped = [report for report in self._known if not report.helper and self._newly_stopped(report.pid)]
        ranks = [report.rank for report in stopped]
        if stopped and any(report.rank not in ranks for report in self._known):
            pids = " ".join(str(report.pid) for report in self._known if report.rank in ranks)
            self._hooks.said(
                f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} stopped (SIGSTOP, or a debugger): "
                f"the others wait for it; kill -CONT {pids}"
            )

    def _newly_stopped(self, pid: int) -> bool:
        """Return whether a process has now been stopped for `_STOPPED_CHECKS` checks; True once."""
        if self._stopped[pid] > _STOPPED_CHECKS:
            return False
        self._stopped[pid] = self._stopped[pid] + 1 if is_stopped(pid) else 0
        if self._stopped[pid] < _STOPPED_CHECKS:
            return False
        self._stopped[pid] = _STOPPED_CHECKS + 1
        return True
