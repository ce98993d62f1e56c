"""`gpudiag view`: TensorBoard on a run, or on many."""

import signal
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.options import MAX_TRACE_GB, MaxTraceGb, WorldSize
from gpudiag.errors import GpudiagError, NotATraceError, UnreadableInputError

if TYPE_CHECKING:
    from types import FrameType

    from gpudiag.readers import ReadLimits

EXAMPLES = (
    ("gpudiag view gpudiag-runs/20260301-120000-resnet50-nccl", "a run: overview, trace viewer, curves"),
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
    """Show a run in TensorBoard: trace viewer, overview, curves.

    PyTorch's traces are converted, so that all ranks are side by side on one clock; TensorFlow's are shown as they are.
    Both have gpudiag's own lines (steps, buckets, waits) above each device's streams. Ends with Ctrl-C.
    """
    from gpudiag.exporting.board import check_interpreter, free_port, serving, url_of
    from gpudiag.exporting.log_directory import run_name
    from gpudiag.readers import ReadLimits

    python = python or sys.executable
    versions = check_interpreter(python)
    free_port(host, port)  # before the work of converting
    limits = ReadLimits(max_bytes=int(max_trace_gb * 1e9))
    signal.signal(signal.SIGTERM, _interrupted)
    with tempfile.TemporaryDirectory(prefix="gpudiag-view-") as name:
        directory = Path(name)
        runs = _runs(path)
        written = 0
        for run in runs:
            try:
                _write(run, directory / _unused(directory, run_name(run)), world_size=world_size, limits=limits)
            except UnreadableInputError as error:
                if len(runs) == 1:
                    raise
                typer.echo(f"gpudiag: {run.name} is left out: {error}", err=True)
                continue
            written += 1
        if not written:
            raise NotATraceError(f"no run below {path} has traces left", "Record again with gpudiag profile.")
        port = free_port(host, port)
        with serving(python, directory, host, port, versions) as process:
            url = url_of(host, port)
            typer.echo(f"{url}#profile  ({versions}; Ctrl-C ends it)", err=True)
            if browser:
                webbrowser.open(url)
            process.wait()
    raise GpudiagError(f"{versions} has ended", "Start it again; its last words are above.")


def _interrupted(_signal: int, _frame: "FrameType | None") -> None:
    """Ended from outside: what is temporary is removed, as with Ctrl-C."""
    raise KeyboardInterrupt


def _runs(path: Path) -> list[Path]:
    """The runs in a directory of runs, the oldest first; else the path itself."""
    from gpudiag.run_files import RUN_FILE

    if path.is_dir() and not (path / RUN_FILE).is_file():
        below = sorted(entry for entry in path.iterdir() if (entry / RUN_FILE).is_file())
        if below:
            return below
    return [path]


def _unused(directory: Path, name: str) -> str:
    number = 1
    chosen = name
    while (directory / chosen).exists():
        number += 1
        chosen = f"{name}-{number}"
    return chosen


def _write(run: Path, directory: Path, *, world_size: int | None, limits: "ReadLimits") -> None:
    """Convert one run. A run whose traces are gone is told apart from what never was one."""
    from gpudiag.exporting.log_directory import write_run
    from gpudiag.pipeline import show
    from gpudiag.run_files import ANALYSIS_FILE, RUN_FILE

    try:
        shown = show([run], world_size=world_size, limits=limits)
    except NotATraceError as error:
        if (run / RUN_FILE).is_file() or (run / ANALYSIS_FILE).is_file():
            raise NotATraceError(
                f"{run} has no traces left to show", "Record again, or draw its saved analysis with gpudiag report."
            ) from error
        raise
    write_run(directory, shown.scene, shown.series, [(profile.name, profile.data) for profile in shown.profiles])
