"""`gpudiag report`: draw the report of a run or of a scaling benchmark."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.command_line.options import (
    MAX_TRACE_GB,
    AllRanks,
    Full,
    MaxTraceGb,
    Traces,
    Width,
    WorldSize,
    read_limits,
)

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis
    from gpudiag.model.benchmarks.scaling import Scaling

EXAMPLES = (
    ("gpudiag report gpudiag-runs/20260301-120000-resnet50-nccl", "a run, from its traces"),
    ("gpudiag report analysis.json", "an analysis that --json wrote, without its traces"),
    ("gpudiag report traces/ --width 80 > report.txt", "for a ticket or a mail"),
    ("gpudiag report traces/ --html report.html", "one page with a timeline of all ranks"),
    ("gpudiag report gpudiag-runs/20260301-120000-scale --markdown scale.md", "a scaling benchmark"),
)


def report(
    paths: Traces,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a self-contained page instead; - prints it.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the report as Markdown instead; - prints it."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures as CSV instead; - prints them.")
    ] = None,
    world_size: WorldSize = None,
    all_ranks: AllRanks = False,
    full: Full = False,
    width: Width = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Draw the report of a run again.

    Analyses the run's traces again. Without traces, draws analysis.json, which may also be named itself. For a
    directory of `gpudiag scale`, draws the scaling.
    """
    from gpudiag.app.report import report as make

    limits = read_limits(max_trace_gb)
    result = make(paths, html=html, markdown=markdown, csv=csv, world_size=world_size, limits=limits)
    if html is markdown is csv is None:
        _draw(result, width=width, all_ranks=all_ranks, full=full, paths=paths)


def _draw(result: "Analysis | Scaling", *, width: int | None, all_ranks: bool, full: bool, paths: list[str]) -> None:
    """Print the report of a run or of a scaling benchmark."""
    from gpudiag.model.analysis import Analysis
    from gpudiag.report.console import report_console

    console = report_console(width=width)
    if isinstance(result, Analysis):
        from gpudiag.report.terminal.report import render_analysis

        render_analysis(result, console, all_ranks=all_ranks, full=full, paths=paths, command="report")
    else:
        from gpudiag.report.scaling.terminal import render_scaling

        render_scaling(result, console)
