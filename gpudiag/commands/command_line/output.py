"""Print results on standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from gpudiag.model.analysis import Analysis
    from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis


Result = TypeVar("Result", bound=msgspec.Struct)


def write_as_json(result: msgspec.Struct) -> None:
    """Print a result as JSON."""
    from gpudiag.model.run_directory import encode_json

    sys.stdout.write(encode_json(result).decode())
    sys.stdout.flush()


def from_here(path: Path) -> str:
    """Return a path relative to the current directory if the path lies in it; otherwise return the path unchanged."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def show(result: Result, render: Callable[[Result, Console], None], *, as_json: bool, width: int | None) -> None:
    """Print a result as JSON, or render it."""
    if as_json:
        write_as_json(result)
        return
    from gpudiag.report.console import report_console

    render(result, report_console(width=width))
    sys.stdout.flush()


def show_analysis(
    analysis: Analysis,
    *,
    as_json: bool,
    all_ranks: bool,
    width: int | None,
    full: bool,
    paths: Sequence[str],
    page: str = "",
) -> None:
    """Print an analysis as JSON or as a report. The other arguments are those of `render_analysis`."""
    if as_json:
        write_as_json(analysis)
        return
    from gpudiag.report.console import report_console
    from gpudiag.report.terminal.report import render_analysis

    console = report_console(width=width)
    render_analysis(analysis, console, all_ranks=all_ranks, full=full, paths=paths, page=page)
    sys.stdout.flush()


def show_pipeline(
    analysis: PipelineAnalysis, *, as_json: bool, all_ranks: bool, width: int | None, full: bool, paths: Sequence[str]
) -> None:
    """Print the analysis of a pipeline-parallel job as JSON or as a report, with the arguments of `render_pipeline`."""
    if as_json:
        write_as_json(analysis)
        return
    from gpudiag.report.console import report_console
    from gpudiag.report.terminal.pipeline import render_pipeline

    render_pipeline(analysis, report_console(width=width), all_ranks=all_ranks, full=full, paths=paths)
    sys.stdout.flush()
