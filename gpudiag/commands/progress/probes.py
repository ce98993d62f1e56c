"""Show the progress of the probes: as a bar in a terminal, as a line per probe in a pipe or a log."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gpudiag.model.sanitize import one_line
from gpudiag.report.console import report_console

if TYPE_CHECKING:
    from gpudiag.machine.probes.runner import ProbeStep

#: Maximum length of a description.
_LONGEST = 60


class ProbeProgressBar:
    """Show the progress of probes. Any thread may call this object with a step. Leaving the context removes the bar."""

    def __init__(self) -> None:
        console = report_console(sys.stderr)
        self._lock = threading.Lock()
        #: Probes for which a line was printed.
        self._printed: set[str] = set()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("loading", total=None)

    def __enter__(self) -> ProbeProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, step: ProbeStep) -> None:
        """Show the progress of a probe."""
        label = one_line(step.what)[:_LONGEST]
        with self._lock:
            if self._bar is not None:
                description = f"loading: {label}" if step.stage == "loading" else f"{step.probe}: {label}"
                done = step.done if step.stage == "measuring" else None
                self._bar.update(
                    self._task, description=Text(description).plain, completed=done or 0, total=step.of or None
                )
            elif step.probe not in self._printed:
                self._printed.add(step.probe)
                line = "loading the probes" if step.stage == "loading" else f"measuring {step.probe}"
                print(line, file=sys.stderr, flush=True)  # noqa: T201
