"""`gpudiag profile` from its options to the analysis: prepare, train, analyse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from gpudiag.app.analyze import analyze_run
from gpudiag.app.profile.links import measure_links
from gpudiag.app.profile.prepare import Prepared, prepare
from gpudiag.app.profile.train import train
from gpudiag.app.report import REPORT_FILE, run_html, step_beside
from gpudiag.machine.probes.runner import ProbeStep
from gpudiag.model.analysis import Analysis
from gpudiag.model.job import RunOptions
from gpudiag.model.run_directory import locked
from gpudiag.training.session.progress import Progress


class Watcher(Protocol):
    """Whoever shows how far a run is."""

    def prepared(self, prepared: Prepared) -> None:
        """Every choice is made; nothing has started."""

    def probing(self) -> AbstractContextManager[Callable[[ProbeStep], None]]:
        """While links are measured: what is called, from several threads, with what is measured now."""

    def heard(self, message: Progress) -> None:
        """A training process says how far it is."""

    def say(self, phase: str) -> None:
        """Something else is done now."""


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """A run and what came of it."""

    run_dir: Path
    analysis: Analysis


def profile(options: RunOptions, watcher: Watcher) -> Profiled:
    """Train, record and analyse. Whatever was measured is in the run directory, also after a failure.

    Raises:
        UsageError, HardwareMissingError, FrameworkMissingError: before anything starts, as `prepare`; and where
            another gpudiag is writing to the run directory.
        WorkerFailedError: as `gpudiag.training.launch.launch`.
        UnreadableInputError: nothing that was recorded can be analysed.
    """
    prepared = prepare(options)
    watcher.prepared(prepared)
    with watcher.probing() as on_probe:
        prepared = measure_links(prepared, on_probe)
    watcher.say("starting")
    run_dir = prepared.plan.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    # Several nodes of one run may share the directory.
    with locked(run_dir) if prepared.plan.job.nodes == 1 else nullcontext():
        train(prepared, watcher.heard)
        watcher.say("analysing")
        analysis = analyze_run(run_dir)
        run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    return Profiled(run_dir=run_dir, analysis=analysis)
