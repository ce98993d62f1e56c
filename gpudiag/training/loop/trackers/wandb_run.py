"""Log a run to W&B."""

from __future__ import annotations

import sys
from typing import Any

from gpudiag.errors import MissingLibraryError
from gpudiag.training.loop.trackers.tracked_run import FINDINGS, REPORT, TrackedRun


def log_to_wandb(
    tracked: TrackedRun,
    *,
    run: Any = None,
    project: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
) -> str:
    """Log metrics, the table of findings and the HTML page. Return the run in words: "W&B run NAME".

    Args:
        tracked: the content to log.
        run: an open run of this process; None to open a run, and to finish it at the end.
        project, name, run_id: project, name and id of the run to open. A run that has this id already is continued.

    Raises:
        MissingLibraryError: W&B is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        hint = "Install it (in a clone: pip install '.[wandb]')."
        raise MissingLibraryError("W&B (wandb) is not installed", hint) from error
    module: Any = wandb
    opened = run is None
    if opened:
        resume = None if run_id is None else "allow"
        run = module.init(project=project, name=name or tracked.name, id=run_id, resume=resume, job_type="gpudiag")
    table = module.Table(columns=list(tracked.columns), data=[list(row) for row in tracked.rows])
    run.log({**tracked.metrics, FINDINGS: table})
    run.summary.update(tracked.metrics)
    artifact = module.Artifact(f"{REPORT}-{run.id}", type="report")
    artifact.add_file(tracked.report)
    run.log_artifact(artifact)
    where = f"W&B run {run.name or run.id}"
    if opened:
        run.finish()
    return where


def open_wandb_run() -> Any:
    """Return this process's open run; None if there is no open run. Do not import W&B."""
    return getattr(sys.modules.get("wandb"), "run", None)
