"""Log a run to MLflow."""

from __future__ import annotations

import sys
from typing import Any

from gpudiag.errors import MissingLibraryError
from gpudiag.training.loop.trackers.tracked_run import FINDINGS, REPORT, TrackedRun


def log_to_mlflow(
    tracked: TrackedRun,
    *,
    client: Any = None,
    run_id: str | None = None,
    project: str | None = None,
    name: str | None = None,
) -> str:
    """Log metrics, the table of findings and the HTML page. Return "MLflow run ID", or "new MLflow run ID" if created.

    Args:
        tracked: the content to log.
        client: `MlflowClient` that can access the run `run_id`; None for a client of the environment's tracking server.
        run_id: an existing run, which may be open in this process; None to create a run.
        project, name: experiment and name of the created run.

    Raises:
        MissingLibraryError: MLflow is not installed.
    """
    try:
        import mlflow
    except ImportError as error:
        hint = "Install it (in a clone: pip install '.[mlflow]')."
        raise MissingLibraryError("MLflow is not installed", hint) from error
    module: Any = mlflow
    client = client or module.MlflowClient()
    created = run_id is None
    if run_id is None:
        if project is not None:
            module.set_experiment(project)
        # While a run is open, MLflow starts a second one only as nested.
        with module.start_run(run_name=name or tracked.name, nested=module.active_run() is not None) as run:
            run_id = run.info.run_id
    # A client can log to a run that has ended.
    for metric, value in tracked.metrics.items():
        client.log_metric(run_id, metric, value)
    # MLflow expects the values of each column.
    columns = (
        dict(zip(tracked.columns, map(list, zip(*tracked.rows, strict=True)), strict=True)) if tracked.rows else {}
    )
    if columns:
        client.log_table(run_id, columns, f"{FINDINGS}.json")
    client.log_artifact(run_id, tracked.report, REPORT)
    return f"{'new ' if created else ''}MLflow run {run_id}"


def open_mlflow_run() -> str | None:
    """Return the id of this thread's open run; None if there is no open run. Do not import MLflow."""
    active = getattr(sys.modules.get("mlflow"), "active_run", lambda: None)()
    return None if active is None else str(active.info.run_id)
