"""Analyses as people name them: traces, a run directory, or an analysis that was saved."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.commands.plain import analyze_traces
from gpudiag.errors import NotATraceError

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.step_view import StepView

#: The schema is the first thing in every JSON that gpudiag writes.
_HEAD_BYTES = 4096


def analysis_of(paths: list[str], *, world_size: int | None, max_trace_gb: float) -> "Analysis":
    """The saved analysis that a single path names, else one made of the traces, else the one kept when they are gone.

    Raises:
        UnreadableInputError: none of these can be had.
    """
    named = _named(paths)
    if named is not None:
        return named
    try:
        return analyze_traces(paths, world_size=world_size, max_trace_gb=max_trace_gb)
    except NotATraceError:
        kept = _kept(paths)
        if kept is None:
            raise
        return kept


def analysis_with_step(
    paths: list[str], *, world_size: int | None, max_trace_gb: float
) -> "tuple[Analysis, StepView | None]":
    """The same, and one step to draw where it comes from traces. Raises what `analysis_of` does."""
    from gpudiag.pipeline import analyze_with_step
    from gpudiag.readers import ReadLimits

    named = _named(paths)
    if named is not None:
        return named, None
    try:
        return analyze_with_step(paths, world_size=world_size, limits=ReadLimits(max_bytes=int(max_trace_gb * 1e9)))
    except NotATraceError:
        kept = _kept(paths)
        if kept is None:
            raise
        return kept, None


def _named(paths: list[str]) -> "Analysis | None":
    """The analysis in the one file that was named, if it says that it is one (of whatever version)."""
    if len(paths) != 1 or not Path(paths[0]).is_file():
        return None
    try:
        with Path(paths[0]).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None  # the reader of traces will say what is wrong with it
    return _read(Path(paths[0])) if b'"gpudiag/analysis/' in head else None


def _kept(paths: list[str]) -> "Analysis | None":
    """The analysis that a run directory kept, when its traces are gone."""
    from gpudiag.run_files import ANALYSIS_FILE

    kept = Path(paths[0]) / ANALYSIS_FILE
    return _read(kept) if len(paths) == 1 and kept.is_file() else None


def _read(path: Path) -> "Analysis":
    from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
    from gpudiag.run_files import read_json

    return read_json(path, Analysis, ANALYSIS_SCHEMA)
