"""Watches a command from its start to its end: hears its processes, hands on signals, and sees who stops or dies."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gpudiag.training.attach.outcome.process_report import ProcessReport, read_reports
from gpudiag.training.attach.watch.deaths import DeathWatch
from gpudiag.training.attach.watch.forward_signals import SignalForwarder
from gpudiag.training.launch.failure_cause import is_stopped, name_ranks
from gpudiag.training.launch.listener import Listener
from gpudiag.training.session.progress import Progress

_EVERY_S = 0.1
#: Between two looks at which processes there are, and whether one is stopped.
_LOOK_S = 1.0
#: A process that is stopped at so many looks in a row is worth a sentence.
_STOPPED_LOOKS = 3
#: With `stop`, how long the command has to end by itself once all ranks are done.
_AFTER_STOP_S = 30.0


class Hooks(NamedTuple):
    """Called while the command runs: with each message, with a sentence for the user, and once when all is measured."""

    heard: Callable[[Progress], None]
    said: Callable[[str], None]
    measured: Callable[[], None]


class CommandWatch:
    """One command that runs.

    Args:
        process: the command.
        listener: hears its training processes.
        hooks: what to call.
        deaths: sees them end.
        signals: what gpudiag gets and the command is to have.
        reports: the directory in which each process says what became of it.
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
        self._next_look_s = 0.0
        self._stopped: dict[int, int] = {}
        self._measured = False

    def run(self, *, stop: bool) -> int:
        """Return the command's exit code, 128 more than the number of the signal that ended it.

        Args:
            stop: end it when all is measured; its exit code is 0 then.
        """
        done_s: float | None = None
        while self._process.poll() is None:
            for message in self._listener.receive(_EVERY_S):
                self._hooks.heard(message)
            self._signals.forward()
            self._look()
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
        if any(told.phase != "done" for told in latest.values()):
            return False
        # Ranks on other nodes are not heard of, and those of a launcher have their numbers from the start.
        expected = {report.rank for report in self._known if report.calls or (report.numbered and not report.helper)}
        return expected <= latest.keys()

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        self._known = read_reports(self._reports)
        self._deaths.watch(report.pid for report in self._known)
        stopped = []
        for report in self._known:
            looks = self._stopped.get(report.pid, 0)
            # Who has stopped the whole job, with Ctrl-Z, knows of it.
            if report.helper or looks > _STOPPED_LOOKS or is_stopped(self._process.pid):
                continue
            self._stopped[report.pid] = looks + 1 if is_stopped(report.pid) else 0
            if looks + 1 == _STOPPED_LOOKS and self._stopped[report.pid]:
                self._stopped[report.pid] = _STOPPED_LOOKS + 1
                stopped.append(report.rank)
        if stopped and any(report.rank not in stopped for report in self._known):
            was = "is" if len(stopped) == 1 else "are"
            self._hooks.said(
                f"{name_ranks(stopped)} {was} stopped (SIGSTOP, or a debugger): the others wait for it; "
                f"kill -CONT {' '.join(str(report.pid) for report in self._known if report.rank in stopped)}"
            )


def make_folder(private: Path) -> Path:
    """Make the directory for the reports of processes."""
    folder = private / "reports"
    os.mkdir(folder, 0o700)  # noqa: PTH102  # with this mode
    return folder
