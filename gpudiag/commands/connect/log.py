"""`gpudiag log`: log a run to an experiment tracker."""

from pathlib import Path
from typing import Annotated

import typer

from gpudiag.commands.command_line.options import (
    MAX_TRACE_GB,
    MaxTraceGb,
    Traces,
    WorldSize,
    known_word,
    read_limits,
)
from gpudiag.errors import UsageError
from gpudiag.training.loop.trackers.tracked_run import TRACKERS

EXAMPLES = (
    ("gpudiag log gpudiag-runs/20260301-120000-resnet50-nccl --to wandb --project speed", "a new W&B run"),
    ("gpudiag log run-dir --to mlflow --run-id 0a1b2c", "add to the training's own MLflow run"),
    ("gpudiag log run-dir --to tensorboard --directory runs", "event file and page in runs/run-dir"),
)


def log(
    paths: Traces,
    *,
    to: Annotated[str, typer.Option("--to", metavar="|".join(TRACKERS), help="Tracker to log to.")],
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="NAME",
            help="W&B project or MLflow experiment. Default: that of the environment.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of the logged run. Default: that of the directory."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Existing W&B or MLflow run to log to.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory", metavar="DIR", help="TensorBoard's log directory. Default: runs.", show_default=False
        ),
    ] = None,
    world_size: WorldSize = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Log a run to W&B, MLflow or TensorBoard.

    Logs step time, throughput, buckets and savings as metrics, the findings as a table, and the HTML page as an
    artifact. The tracker's own settings and variables say where.
    """
    tracker = known_word("--to", to, TRACKERS)
    assert tracker is not None  # noqa: S101  # the option is required
    if tracker == "tensorboard" and (project is not None or run_id is not None):
        raise UsageError("--project and --run-id are for wandb and mlflow", "TensorBoard takes --directory and --name.")
    if tracker != "tensorboard" and directory is not None:
        raise UsageError("--directory is for tensorboard", f"The settings of {tracker} say where it logs.")
    from gpudiag.app.trackers.log import log_run

    where = log_run(
        paths,
        tracker,
        project=project,
        name=name,
        run_id=run_id,
        directory=directory,
        world_size=world_size,
        limits=read_limits(max_trace_gb),
    )
    typer.echo(f"gpudiag: logged to {where}", err=True)
