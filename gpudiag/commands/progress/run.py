"""Show the progress of `gpudiag profile`: as a bar and tables in a terminal, as a line per phase in a pipe."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpudiag.commands.progress.live_table import LiveTable
from gpudiag.commands.progress.probes import ProbeProgressBar
from gpudiag.machine.inventory.gpus.now import gpus_now
from gpudiag.model.sanitize import one_line

if TYPE_CHECKING:
    from types import TracebackType

    from gpudiag.app.profile.prepare import Prepared
    from gpudiag.training.session.progress import Progress

#: Phases in order, with their displayed names.
_PHASES = {
    "starting": "starting",
    "warmup": "warming up",
    "timed": "timing steps without the profiler",
    "lines": "timing the lines of the source",
    "profiled": "recording steps",
    "saving": "saving traces",
    "done": "done",
}
_ORDER = tuple(_PHASES)


class RunProgress:
    """Show the progress of the rank that is furthest behind."""

    def __init__(self) -> None:
        self._processes = 0
        self._latest: dict[int, Progress] = {}  # latest message of each rank
        self._notes: set[str] = set()  # printed notes; several ranks may send the same note
        self._phase = ""  # phase that was shown last
        #: rich's progress bar, its task and the live tables, which begin with the first phase; None in a pipe.
        self._bar: Any = None
        self._task: Any = None
        self._table: LiveTable | None = None
        self._open = ExitStack()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def prepared(self, prepared: Prepared) -> None:
        """Describe the run."""
        self._processes = prepared.plan.processes
        print(f"gpudiag: {prepared.describe()}", file=sys.stderr, flush=True)  # noqa: T201

    def probing(self) -> ProbeProgressBar:
        """Return the progress of the probes of links."""
        return ProbeProgressBar()

    def heard(self, message: Progress) -> None:
        """Show one message."""
        if message.note is not None and message.note not in self._notes:
            self._notes.add(message.note)
            self._print(f"gpudiag: {one_line(message.note)}")
        if message.phase == "failed":
            return
        self._latest[message.rank] = message
        if self._table is not None:
            self._table.heard(message)
        if len(self._latest) < self._processes:  # a rank without message may be further behind
            return
        behind = min(self._latest.values(), key=lambda rank: (_ORDER.index(rank.phase), rank.steps))
        self._show(_PHASES[behind.phase], behind.steps, behind.of)

    def say(self, phase: str, steps: int = 0, of: int | None = None) -> None:
        """Show a phase of this process."""
        self._show(phase, steps, of)

    def note(self, sentence: str) -> None:
        """Show a sentence."""
        self._print(f"gpudiag: {one_line(sentence)}")

    def _show(self, phase: str, steps: int, of: int | None) -> None:
        """Update the bar in a terminal; elsewhere print a line if the phase has changed."""
        if self._bar is None and sys.stderr.isatty():
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, description=phase, completed=steps, total=of)
        elif phase != self._phase:
            self._print(f"gpudiag: {phase}{f' ({of})' if of else ''}")
        self._phase = phase

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            print(line, file=sys.stderr, flush=True)  # noqa: T201

    def _start(self) -> None:
        """Start the bar and the live tables."""
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True, markup=False, highlight=False),
        )
        self._task = self._bar.add_task("", total=None)
        self._table = LiveTable(self._open.enter_context(gpus_now()))
        for message in self._latest.values():
            self._table.heard(message)
        bar_and_tables = Group(self._bar, self._table)
        self._open.enter_context(Live(bar_and_tables, console=self._bar.console, refresh_per_second=4, transient=True))
