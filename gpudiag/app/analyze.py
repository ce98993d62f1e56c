"""`gpudiag analyze`: analyse traces, and read saved analyses."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gpudiag.errors import NotATraceError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis, Validity
from gpudiag.model.run_directory import ANALYSIS_FILE, find_kernel_only_traces, read_json, write_json
from gpudiag.model.step_view import STEP_FILE, StepView
from gpudiag.trace import ReadLimits, read_traces
from gpudiag.trace.kernel_only import least_disturbed
from gpudiag.trace.parallel import WhileReading, safe_path
from gpudiag.trace.recordings import check_one_recording
from gpudiag.trace.sources import find_operation_table, find_sources

if TYPE_CHECKING:
    from gpudiag.analysis.timeline.rank_events import RankEvents
    from gpudiag.app.digests.write import DigestEngine
    from gpudiag.app.stages import AnalysedTraces
    from gpudiag.model.event import Trace
    from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

#: Number of bytes at the beginning of a JSON file that contain its schema.
_HEAD_BYTES = 4096


def analyze(
    paths: Sequence[Path | str],
    *,
    world_size: int | None = None,
    limits: ReadLimits | None = None,
    engine: DigestEngine | None = None,
) -> Analysis:
    """Analyse the traces of one job.

    Args:
        paths: traces, directories of traces, a run directory, or patterns.
        world_size: number of ranks, if the traces do not contain it.
        limits: limits on the traces that are read; None for the default limits.
        engine: callable that reads the traces, for instance on a cluster; None to read them here. It must be picklable.

    Raises:
        SeveralRecordingsError: two of the paths are of different jobs.
    """
    return _analyse(paths, world_size, limits, engine).analysis


def analyze_with_step(
    paths: Sequence[Path | str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> tuple[Analysis, StepView | None]:
    """Return the analysis, and a typical step of all ranks to draw. The step is None if there are no step windows.

    The arguments are those of `analyze`.
    """
    return _with_step(_analyse(paths, world_size, limits))


def analyze_operation_table(
    paths: Sequence[Path | str], *, limits: ReadLimits | None = None
) -> PipelineAnalysis | None:
    """Analyse the table of operations among the paths; return None if the paths contain no such table."""
    path = find_operation_table(paths)
    if path is None:
        return None
    from gpudiag.analysis.pipeline.analyse import analyse_operations  # noqa: PLC0415 # only for tables
    from gpudiag.trace.operation_table import read_operation_table  # noqa: PLC0415 # likewise

    return analyse_operations(read_operation_table(path, limits))


def analyze_run(run_dir: Path) -> Analysis:
    """Analyse a run directory, and save analysis.json and step.json in it."""
    return analyze_run_traces(run_dir).analysis


def analyze_run_traces(run_dir: Path) -> AnalysedTraces:
    """Analyse a run directory like `analyze_run`, and also return the timeline and the attribution."""
    analysed = _analyse([run_dir], None, None)
    analysis, view = _with_step(analysed)
    write_json(run_dir / ANALYSIS_FILE, analysis)
    if view is not None:
        write_json(run_dir / STEP_FILE, view, indent=0)
    return analysed


def _analyse(
    paths: Sequence[Path | str],
    world_size: int | None,
    limits: ReadLimits | None,
    engine: DigestEngine | None = None,
) -> AnalysedTraces:
    """Analyse the traces. If the run has usable kernel-only traces, which have less overhead, analyse these instead."""
    # The events of a rank are usually prepared in the process that reads its trace, but later if a kernel-only trace
    # and a full trace are joined after reading.
    views = None if find_kernel_only_traces(paths) else WhileReading(_events_of_rank)
    # `repeated`: accept two files of one rank, because `check_one_recording` reports this conflict. `then`: the task to
    # run for each trace in the process that reads it.
    read = partial(
        read_traces, world_size=world_size, limits=limits, repeated=True, meanwhile=_import_stages, then=views
    )
    full, left_out = (read(paths), ()) if engine is None else _read_elsewhere(paths, engine, limits, read)
    check_one_recording(paths, full)
    traces, unused = least_disturbed(paths, full, limits)
    from gpudiag.app.stages import analysis_of_traces  # noqa: PLC0415 # already imported

    return analysis_of_traces(traces, paths, world_size=world_size, unused=(*left_out, *unused), views=views)


def _read_elsewhere(
    paths: Sequence[Path | str],
    engine: DigestEngine,
    limits: ReadLimits | None,
    read: Callable[[Sequence[Path | str]], tuple[Trace, ...]],
) -> tuple[tuple[Trace, ...], tuple[Validity, ...]]:
    """Read traces by an engine if each file can be read alone, or else by `read` in this process.

    Return the traces, and warnings about unreadable files.
    """
    from gpudiag.app.digests.write import independent, read_elsewhere  # noqa: PLC0415  # only with a cluster

    files = find_sources(paths)
    if not independent(paths, files):
        return read(paths), ()
    with tempfile.TemporaryDirectory(prefix="gpudiag-") as directory:
        # The engine's threads stay in another process, because ranks of large jobs are analysed in forks of this one.
        with safe_path(), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            future = pool.submit(read_elsewhere, files, Path(directory), limits or ReadLimits(), engine)
            source, warnings = future.result()
        digests = read([directory])
    # The digest files no longer exist, so each trace gets the name of its original file.
    traces = tuple(msgspec.structs.replace(trace, source=source[Path(trace.source).name]) for trace in digests)
    return traces, tuple(Validity(code="repaired-input", message=message) for message in warnings)


def _events_of_rank(trace: Trace) -> RankEvents:
    from gpudiag.analysis.timeline.rank_events import events_of_rank  # noqa: PLC0415 # as in `_import_stages`

    return events_of_rank(trace)


def _with_step(analysed: AnalysedTraces) -> tuple[Analysis, StepView | None]:
    """Return the analysis and a typical step. A step of many ranks shows the ranks with findings of their own."""
    from gpudiag.analysis.timeline.step_view import view_of_step  # noqa: PLC0415 # already imported

    analysis, lines = analysed.analysis, None if analysed.lines is None else analysed.lines.spans
    of_some_ranks = [finding.ranks for finding in analysis.findings if len(finding.ranks) < len(analysis.ranks_present)]
    important = {rank for ranks in of_some_ranks for rank in ranks}
    return analysis, view_of_step(analysed.timeline, analysed.attribution, lines, important)


def _import_stages() -> None:
    """Import the stages while other processes read the traces."""
    import_module("gpudiag.app.stages")


def side_by_side(analyse: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """Call `analyse` for each item in up to 8 processes in parallel, because an analysis takes a core for seconds.

    Results are in the order of the items. A single item or core needs no other process.
    """
    workers = min(len(items), os.cpu_count() or 1, 8)
    if workers < 2:
        return [analyse(item) for item in items]
    with safe_path(), ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(analyse, items))


def load_analysis(paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None) -> Analysis:
    """Return the analysis of the paths.

    A single path may be a saved analysis, which is read. Otherwise the traces are analysed. If a run directory has no
    traces any more, its saved analysis is read.
    """
    return _saved_or(paths, lambda: (analyze(paths, world_size=world_size, limits=limits), None))[0]


def analysis_with_step(
    paths: Sequence[str], *, world_size: int | None = None, limits: ReadLimits | None = None
) -> tuple[Analysis, StepView | None]:
    """Return the result of `load_analysis` and, if it comes from traces, a step to draw."""
    return _saved_or(paths, lambda: analyze_with_step(paths, world_size=world_size, limits=limits))


def _saved_or(
    paths: Sequence[str], from_traces: Callable[[], tuple[Analysis, StepView | None]]
) -> tuple[Analysis, StepView | None]:
    """Return the analysis saved in the file at the only path, or else the result of `from_traces`.

    If the only path is a directory without traces, its saved analysis is returned. A saved analysis has the step None.
    """
    single = Path(paths[0]) if len(paths) == 1 else None
    if single is not None and single.is_file() and _is_analysis(single):
        return read_json(single, Analysis, ANALYSIS_SCHEMA), None
    try:
        return from_traces()
    except NotATraceError:
        if single is None or not (single / ANALYSIS_FILE).is_file():
            raise
        return read_json(single / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA), None


def _is_analysis(path: Path) -> bool:
    """Return whether a file has the schema of an analysis, of any version."""
    try:
        with path.open("rb") as file:
            return b'"gpudiag/analysis/' in file.read(_HEAD_BYTES)
    except OSError:
        return False  # the reader of traces will report the error
