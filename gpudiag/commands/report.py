"""`gpudiag report`: draw a run again, on any machine."""

from pathlib import Path
from typing import TYPE_CHECKING

from gpudiag.commands.options import MAX_TRACE_GB, AllRanks, MaxTraceGb, Traces, Width, WorldSize, analyze_traces
from gpudiag.errors import NotATraceError

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis

#: The schema is the first thing in every JSON that gpudiag writes.
_HEAD_BYTES = 4096

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

    try:
        analysis = _named(paths) or analyze_traces(paths, world_size=world_size, max_trace_gb=max_trace_gb)
    except NotATraceError:
        kept = _kept(paths)
        if kept is None:
            raise
        analysis = kept
    render_analysis(analysis, report_console(width=width), all_ranks=all_ranks)


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
