"""`gpudiag view`: TensorBoard on a run, or on many."""

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
    ("gpudiag view gpudiag-runs", "all runs below it, beside each other"),
    ("gpudiag view traces/ --port 0 --no-open", "on any free port, without starting a browser"),
)

_PORT = 6006


def view(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A run, a directory of runs, traces, or a directory of traces."),
    ],
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The address to serve on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="The port; 0 for any free one.")
    ] = _PORT,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser where there is a screen.")] = True,
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="The interpreter that has TensorBoard; the one that runs gpudiag if left out.",
        ),
    ] = None,
    world_size: WorldSize = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Show a run in TensorBoard: verdict, trace viewer, overview, curves.

    PyTorch's traces are converted, so that all ranks are side by side on one clock; TensorFlow's are shown as they are.
    Both have gpudiag's own lines (steps, buckets, waits) above each device's streams. Ends with Ctrl-C.
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
    """Ended from outside: what is temporary is removed, as with Ctrl-C."""
    raise KeyboardInterrupt
