"""`gpudiag profile`: prepare, train and analyse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from gpudiag.app.analyze import analyze_run
from gpudiag.app.profile.prepare import Prepared, measure_links, prepare
from gpudiag.app.profile.train import train
from gpudiag.app.profile.tries import fitting, measure_tries
from gpudiag.app.report import REPORT_FILE, run_html, step_beside
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.analysis import Analysis
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import TRIES_FILE, locked
from gpudiag.training.session.progress import Progress


class Watcher(Protocol):
    """An observer that shows the progress of a run."""

    def prepared(self, prepared: Prepared) -> None:
        """Called when the run is prepared, before anything starts."""

    def probing(self) -> AbstractContextManager[Callable[[ProbeStep], None]]:
        """Return a context manager of the callback for link probes, which several threads call."""

    def heard(self, message: Progress) -> None:
        """Called with each message of a training process."""

    def say(self, phase: str, steps: int = 0, of: int | None = None) -> None:
        """Called when a phase begins, and later with its completed `steps`, out of `of` (None if unknown)."""

    def note(self, sentence: str) -> None:
        """Called with a sentence for the user."""


class ProfiledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory and its analysis."""

    run_dir: Path
    analysis: Analysis


def profile(options: RunOptions, watcher: Watcher) -> ProfiledRun:
    """Train, record and analyse. After a failure the run directory keeps what was measured."""
    prepared = prepare(options)
    watcher.prepared(prepared)
    jobs, reasons = fitting(prepared.plan.job)
    for change, reason in reasons.items():
        watcher.note(f"{change} is not tried: {reason}")
    with watcher.probing() as on_probe:
        prepared = measure_links(prepared, on_probe)
    watcher.say("starting")
    run_dir = prepared.plan.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    # Several nodes of one run may share the directory, so it is locked only if there is one node.
    with locked(run_dir) if prepared.plan.job.nodes == 1 else nullcontext():
        (run_dir / TRIES_FILE).unlink(missing_ok=True)  # left by an earlier run
        train(prepared, watcher.heard)
        if options.tries:
            measure_tries(prepared, jobs, reasons, watcher.say)
        watcher.say("analysing")
        analysis = analyze_run(run_dir)
        run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    return ProfiledRun(run_dir=run_dir, analysis=analysis)
