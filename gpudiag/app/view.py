"""`gpudiag view`: show one or more runs in TensorBoard."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gpudiag.app.analyze import load_analysis
from gpudiag.app.export import read_recorded
from gpudiag.errors import GpudiagError, NotATraceError, UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.run_directory import ANALYSIS_FILE, RUN_FILE, readable_json
from gpudiag.report.export.tensorboard.log_directory import run_name, write_run
from gpudiag.report.export.tensorboard.server import check_interpreter, free_port, serving, url_of
from gpudiag.report.text.run import to_markdown
from gpudiag.trace import ReadLimits

_OTHER_FIGURES = (
    "The other pages of the profile show only the recording: their step times include the profiler's overhead, and "
    "they do not show waits of one rank for another."
)


def view(
    path: Path,
    opened: Callable[[str, str], None],
    say: Callable[[str], None],
    *,
    host: str,
    port: int,
    python: str,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
) -> NoReturn:
    """Convert runs and serve them, until interrupted.

    Args:
        path: a run, a directory of runs, or traces.
        opened: called with the address and TensorBoard's versions when the server answers.
        say: called with a sentence for each run that is left out.
        host, port: the address of the server; port 0 for any free port.
        python: the interpreter that has TensorBoard.
        world_size, limits: as for `analyze`.
    """
    versions = check_interpreter(python)
    free_port(host, port)  # check the port before the runs are converted
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
                say(f"{run.name} is left out: {error}")
                continue
            written += 1
        if not written:
            raise NotATraceError(f"no run in {path} has traces", "Record again with gpudiag profile.")
        port = free_port(host, port)  # another process may have taken the port meanwhile
        with serving(python, directory, host, port, versions) as process:
            opened(url_of(host, port), versions)
            process.wait()
    raise GpudiagError(f"{versions} has ended", "Start it again; its last output is above.")


def _runs(path: Path) -> list[Path]:
    """Return the runs of a directory, by name; for any other path, return the path itself."""
    if path.is_dir() and not (path / RUN_FILE).is_file():
        runs = sorted(entry for entry in path.iterdir() if (entry / RUN_FILE).is_file())
        if runs:
            return runs
    return [path]


def _unused(directory: Path, name: str) -> str:
    """Return a name that no directory has: `name`, or `name` with a number."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(unused for unused in names if not (directory / unused).exists())


def _write(run: Path, directory: Path, *, world_size: int | None, limits: ReadLimits | None) -> None:
    """Convert one run. Raise NotATraceError if it has no traces."""
    try:
        recorded = read_recorded([run], world_size=world_size, limits=limits)
    except NotATraceError as error:
        if (run / RUN_FILE).is_file() or (run / ANALYSIS_FILE).is_file():
            raise NotATraceError(
                f"{run} has no traces to show", "Record again, or draw its saved analysis with gpudiag report."
            ) from error
        raise
    saved = readable_json(run / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
    analysis = saved or load_analysis([str(run)], world_size=world_size, limits=limits)
    write_run(
        directory,
        recorded.export_model,
        recorded.series,
        f"{to_markdown(analysis)}\n{_OTHER_FIGURES}",
        [(profile.name, profile.data) for profile in recorded.profiles],
    )
