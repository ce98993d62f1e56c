"""`gpudiag report`: draw a run again, on any machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpudiag.commands.options import MAX_TRACE_GB, AllRanks, MaxTraceGb, Traces, Width, WorldSize
from gpudiag.commands.report_files import run_html, scaling_html, scaling_of, step_beside, write_text
from gpudiag.commands.saved import analysis_of, analysis_with_step

if TYPE_CHECKING:
    from gpudiag.model.scaling import Scaling

EXAMPLES = (
    ("gpudiag report gpudiag-runs/20260301-120000-resnet50-nccl", "a run, from its traces"),
    ("gpudiag report analysis.json", "an analysis that --json wrote, without its traces"),
    ("gpudiag report traces/ --width 80 > report.txt", "for a ticket or a mail"),
    ("gpudiag report traces/ --html report.html", "one page with a timeline of all ranks, to be passed on"),
    ("gpudiag report gpudiag-runs/20260301-120000-scale --markdown scale.md", "a scaling benchmark"),
)


def report(
    paths: Traces,
    *,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained page instead.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write the report as Markdown instead.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures as CSV instead.")] = None,
    world_size: WorldSize = None,
    all_ranks: AllRanks = False,
    width: Width = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Draw the report of a run again.

    The analysis is redone from the run's traces. Where only analysis.json was kept, that is drawn; it may also be
    named itself. Of a directory that `gpudiag scale` wrote, the scaling is drawn.
    """
    known = scaling_of(paths)
    if known is not None:
        _scaling(*known, html=html, markdown=markdown, csv=csv, width=width)
        return
    if html is not None:
        analysis, step = analysis_with_step(paths, world_size=world_size, max_trace_gb=max_trace_gb)
        given = Path(paths[0])
        directory = given if len(paths) == 1 and given.is_dir() else given.parent if len(paths) == 1 else None
        if step is None and directory is not None:
            step = step_beside(directory)
        run_html(analysis, step, directory, html)
    else:
        analysis = analysis_of(paths, world_size=world_size, max_trace_gb=max_trace_gb)
    if markdown is not None:
        from gpudiag.reporting import run_text

        write_text(markdown, run_text.to_markdown(analysis))
    if csv is not None:
        from gpudiag.reporting import run_text

        write_text(csv, run_text.to_csv(analysis))
    if html is None and markdown is None and csv is None:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.terminal import render_analysis

        render_analysis(analysis, report_console(width=width), all_ranks=all_ranks)


def _scaling(
    result: "Scaling", directory: Path, *, html: Path | None, markdown: Path | None, csv: Path | None, width: int | None
) -> None:
    from gpudiag.reporting import scaling_text

    if html is not None:
        scaling_html(result, directory, html)
    if markdown is not None:
        write_text(markdown, scaling_text.to_markdown(result))
    if csv is not None:
        write_text(csv, scaling_text.to_csv(result.points))
    if html is None and markdown is None and csv is None:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.scaling_terminal import render_scaling

        render_scaling(result, report_console(width=width))
