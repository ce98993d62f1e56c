"""`gpudiag view`: show runs in TensorBoard."""

import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import MAX_TRACE_GB, MaxTraceGb, WorldSize, read_limits

if TYPE_CHECKING:
    from types import FrameType

EXAMPLES = (
    ("gpudiag view gpudiag-runs/20260301-120000-resnet50-nccl", "a run: verdict, overview, trace viewer, curves"),
    ("gpudiag view gpudiag-runs", "all runs in a directory, side by side"),
    ("gpudiag view traces/ --port 0 --no-open", "on any free port, without opening a browser"),
)

_PORT = 6006


def view(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A run, a directory of runs, traces, or a directory of traces."),
    ],
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to serve on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; 0 for any free one.")
    ] = _PORT,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser if there is a screen.")] = True,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Interpreter that has TensorBoard. Default: gpudiag's own.",
        ),
    ] = None,
    world_size: WorldSize = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Show a run in TensorBoard: verdict, trace viewer, overview, curves.

    Converts PyTorch's traces, so that all ranks share one clock; shows TensorFlow's as they are. Both have gpudiag's
    tracks (steps, buckets, waits) above each device's streams. Ctrl-C ends it.
    """
    from gpudiag.app.view import view as serve

    def opened(url: str, versions: str) -> None:
        typer.echo(f"{url}#profile  ({versions}; Ctrl-C ends it)", err=True)
        if browser:
            webbrowser.open(url)

    signal.signal(signal.SIGTERM, _interrupted)
    serve(
        path,
        opened,
        lambda line: typer.echo(f"gpudiag: {line}", err=True),
        host=host,
        port=port,
        python=python or sys.executable,
        world_size=world_size,
        limits=read_limits(max_trace_gb),
    )


def _interrupted(_signal: int, _frame: "FrameType | None") -> None:
    """Treat SIGTERM as Ctrl-C, so that temporary files are removed."""
    raise KeyboardInterrupt
