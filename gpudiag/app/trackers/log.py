"""`gpudiag log`: log a run to an experiment tracker."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpudiag.app.analyze import analysis_with_step, analyze_run
from gpudiag.app.report import REPORT_FILE, run_html, step_beside
from gpudiag.app.trackers.content import tracked_run
from gpudiag.errors import GpudiagError
from gpudiag.model.analysis import Analysis
from gpudiag.model.run_directory import write_json
from gpudiag.report.export.tensorboard.log_directory import ScalarSeries, write_events
from gpudiag.report.text.run import to_markdown
from gpudiag.trace import ReadLimits
from gpudiag.training.loop.trackers.mlflow_run import log_to_mlflow
from gpudiag.training.loop.trackers.tracked_run import TRACKED_FILE, TrackedRun, TrackerName
from gpudiag.training.loop.trackers.wandb_run import log_to_wandb

#: Directory to which TensorBoard's own writers write by default.
TENSORBOARD_DIRECTORY = Path("runs")


def log_run(
    paths: Sequence[str],
    to: TrackerName,
    *,
    project: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    directory: Path | None = None,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
) -> str:
    """Analyse a run, and log its metrics, findings and HTML page. Return the location of the logged run in words.

    Args:
        paths: traces, a run directory or a saved analysis.
        to: the tracker.
        project: project (W&B) or experiment (MLflow); None for the project that the environment sets.
        name: name of the logged run; None for the name of the directory.
        run_id: an existing run of the tracker to log to; None for a new run.
        directory: parent of the logged run's directory, for TensorBoard.
        world_size, limits: as for `analyze`.

    Raises:
        GpudiagError: the tracker failed.
        MissingLibraryError: the tracker's library is not installed.
    """
    analysis, step = analysis_with_step(paths, world_size=world_size, limits=limits)
    path = Path(paths[0])
    beside = None if len(paths) > 1 else path if path.is_dir() else path.parent
    if step is None and beside is not None:  # a saved analysis may have a saved step beside it
        step = step_beside(beside)
    with tempfile.TemporaryDirectory(prefix="gpudiag-log-") as scratch:
        report = Path(scratch) / REPORT_FILE
        run_html(analysis, step, beside, report)
        tracked = tracked_run(analysis, path, report)
        if to == "tensorboard":
            return log_to_tensorboard(tracked, analysis, (directory or TENSORBOARD_DIRECTORY) / (name or tracked.name))
        try:
            if to == "wandb":
                return log_to_wandb(tracked, project=project, name=name, run_id=run_id)
            return log_to_mlflow(tracked, project=project, name=name, run_id=run_id)
        except GpudiagError:
            raise
        except Exception as error:
            first_line = str(error).strip().partition("\n")[0]
            raise GpudiagError(
                f"{to} failed: {type(error).__name__}: {first_line}",
                f"See the settings of {to} (docs/commands/log.md).",
            ) from error


def log_to_tensorboard(tracked: TrackedRun, analysis: Analysis, directory: Path) -> str:
    """Write an event file with the metrics and the report, and beside it the HTML page. Return their location in words.

    The event file is added to the event files that the training's own writer has written in this directory.
    """
    series = tuple(ScalarSeries(tag=name, points=((0, value),)) for name, value in tracked.metrics.items())
    now_s = time.time()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_events(series, to_markdown(analysis), directory / f"events.out.tfevents.{now_s:.0f}.gpudiag", now_s)
        shutil.copyfile(tracked.report, directory / REPORT_FILE)
    except OSError as error:
        raise GpudiagError(f"cannot write {directory}: {error.strerror or error}", "Choose another place.") from error
    return f"{directory}, for tensorboard --logdir {directory.parent}"


def prepare(run_dir: Path) -> tuple[TrackedRun, Analysis]:
    """Analyse a run directory, and write its HTML page and the content for trackers in it."""
    analysis = analyze_run(run_dir)
    run_html(analysis, step_beside(run_dir), run_dir, run_dir / REPORT_FILE)
    tracked = tracked_run(analysis, run_dir, run_dir / REPORT_FILE)
    write_json(run_dir / TRACKED_FILE, tracked)
    return tracked, analysis
