"""`gpudiag report`: draw a run again, on any machine."""

from gpudiag.commands.options import MAX_TRACE_GB, AllRanks, MaxTraceGb, Traces, Width, WorldSize
from gpudiag.commands.saved import analysis_of

EXAMPLES = (
    ("gpudiag report gpudiag-runs/20260301-120000-resnet50-nccl", "a run, from its traces"),
    ("gpudiag report analysis.json", "an analysis that --json wrote, without its traces"),
    ("gpudiag report traces/ --width 80 > report.txt", "for a ticket or a mail"),
)


def report(
    paths: Traces,
    *,
    world_size: WorldSize = None,
    all_ranks: AllRanks = False,
    width: Width = None,
    max_trace_gb: MaxTraceGb = MAX_TRACE_GB,
) -> None:
    """Draw the report of a run again.

    The analysis is redone from the run's traces. Where only analysis.json was kept, that is drawn; it may also be
    named itself.
    """
    from gpudiag.reporting.console import report_console
    from gpudiag.reporting.terminal import render_analysis

    analysis = analysis_of(paths, world_size=world_size, max_trace_gb=max_trace_gb)
    render_analysis(analysis, report_console(width=width), all_ranks=all_ranks)
