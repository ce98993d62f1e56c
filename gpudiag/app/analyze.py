"""`gpudiag analyze`: analyse traces, and read saved analyses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from gpudiag.app.recordings import least_disturbed
from gpudiag.errors import NotATraceError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.attribution import Attribution
from gpudiag.model.run_directory import ANALYSIS_FILE, read_json, write_json
from gpudiag.model.step_view import STEP_FILE, StepView
from gpudiag.model.timeline import Timeline
from gpudiag.trace import ReadLimits, read_traces

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

#: The schema is at the beginning of every JSON file that gpudiag writes.
_HEAD_BYTES = 4096


def analyze(
    paths: Sequence[Path | str],
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
    keep: Callable[[Timeline, Attribution], None] | None = None,
) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        world_size: number of ranks, if the traces do not say.
        limits: limits on reading; None for the reader's own.
        keep: called with the timeline and its attribution.

    Raises:
        UnreadableInputError: a file is missing, broken, too large or no trace, or has nothing to analyse.
    """
    full = read_traces(paths, world_size=world_size, limits=limits, repeated=True, meanwhile=_import_stages)
    traces, unused = least_disturbed(paths, full, limits)
    from gpudiag.app.stages import analysis_of_traces  # noqa: PLC0415  # by now imported

    return analysis_of_traces(traces, paths, world_size=world_size, unused=unused, keep=keep)


def _import_stages() -> None:
    """Import the stages while other processes read."""
    import_module("gpudiag.app.stages")


def analyze_run(run_dir: Path, keep: Callable[[Timeline, Attribution], None] | None = None) -> Analysis:
    """Analyse a run directory and save analysis.json and step.json in it. Raises as `analyze`."""
    analysis, view = analyze_with_step([run_dir], keep=keep)
    write_json(run_dir / ANALYSIS_FILE, analysis)
    if view is not None:
        write_json(run_dir / STEP_FILE, view, indent=0)
    return analysis


def side_by_side(analyse: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """Analyse runs in parallel processes, because each takes one core for seconds."""
    workers = min(len(items), os.cpu_count() or 1, 8)
    if workers < 2:
        return [analyse(item) for item in items]
    with _safe_path(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(analyse, items))


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep spawned processes from importing modules of the current directory."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def analyze_with_step(
    paths: Sequence[Path | str],
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
    keep: Callable[[Timeline, Attribution], None] | None = None,
) -> tuple[Analysis, StepView | None]:
    """The analysis and one typical step of all ranks to draw; None for it where nothing was cut into steps.

    Takes and raises what `analyze` does.
    """
    views: list[StepView | None] = []

    def look(timeline: Timeline, attribution: Attribution) -> None:
        from gpudiag.analysis.timeline.step_view import view_of_step  # noqa: PLC0415  # a stage, by now imported

        views.append(view_of_step(timeline, attribution))
        if keep is not None:
            keep(timeline, attribution)

    analysis = analyze(paths, world_size=world_size, limits=limits, keep=look)
    return analysis, views[0]


def load_analysis(paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None) -> Analysis:
    """Return the saved analysis that a single path names, else analyse the traces, else read the directory's analysis.

    Raises:
        UnreadableInputError: none of these exists.
    """
    return _saved_or(paths, lambda: analyze(paths, world_size=world_size, limits=limits))


def analysis_with_step(
    paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> tuple[Analysis, StepView | None]:
    """Return the analysis as `load_analysis`, with one step to draw if it comes from traces."""
    views: list[StepView | None] = [None]

    def from_traces() -> Analysis:
        analysis, views[0] = analyze_with_step(paths, world_size=world_size, limits=limits)
        return analysis

    return _saved_or(paths, from_traces), views[0]


def _saved_or(paths: Sequence[str], from_traces: Callable[[], Analysis]) -> Analysis:
    only = Path(paths[0]) if len(paths) == 1 else None
    if only is not None and only.is_file() and _says_analysis(only):
        return read_json(only, Analysis, ANALYSIS_SCHEMA)
    try:
        return from_traces()
    except NotATraceError:
        if only is None or not (only / ANALYSIS_FILE).is_file():
            raise
        return read_json(only / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)


def _says_analysis(path: Path) -> bool:
    """Return whether a file says that it is an analysis, of any version."""
    try:
        with path.open("rb") as file:
            return b'"gpudiag/analysis/' in file.read(_HEAD_BYTES)
    except OSError:
        return False  # the reader of traces reports the error
