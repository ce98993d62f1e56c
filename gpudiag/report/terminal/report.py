"""The report in a terminal: what ran, the verdict, where the time went, other findings, how far to trust it."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.report.header import (
    header_lines,
    on_processors,
    recorded_steps_note,
    software_line,
    step_line,
    unit_of,
    what_ran,
)
from gpudiag.report.layout import print_trimmed, under_headings
from gpudiag.report.palette import fills
from gpudiag.report.rank_rows import rows_of
from gpudiag.report.terminal.bars import legend, stacked_bars
from gpudiag.report.terminal.findings import findings_section, other_findings_section, trust_section, verdict_section
from gpudiag.report.terminal.ranks import OVERLAPPED, OVERLAPPED_WORDS, buckets_seen, overlaps, rank_table
from gpudiag.report.terminal.traffic import collectives_table, kernels_table, modules_section, wait_lines
from gpudiag.report.verdict import explained_lines, verdict_of

#: Lines on waits that a short report has.
_FEW_WAITS = 2
_MORE = "More: `gpudiag analyze --full` (evidence, kernels, modules), `gpudiag report --html FILE` (timeline)"


def render_analysis(analysis: Analysis, console: Console, *, all_ranks: bool = False, full: bool = False) -> None:
    """Print the report on `console`, without the spaces with which tables fill their lines.

    Args:
        analysis: what to show.
        console: where, and how wide.
        all_ranks: draw every rank, however many there are.
        full: also show the evidence of each finding, all advice, collectives, kernels and modules.
    """
    report = analysis_report(analysis, console, all_ranks=all_ranks, full=full)
    print_trimmed(console, report)


def analysis_report(analysis: Analysis, console: Console, *, all_ranks: bool = False, full: bool = False) -> Group:
    """Return the report as one renderable, laid out for this console's width, colours and encoding."""
    verdict = verdict_of(analysis)
    sections: list[tuple[str, RenderableType]] = []
    time = _time_section(analysis, console, all_ranks=all_ranks, full=full)
    if time is not None:
        sections.append((time_heading(analysis), time))
    if full:
        sections += _details(analysis, console)
    else:
        others = other_findings_section(analysis, verdict)
        sections += [("Other findings", others)] if others is not None else []
    doubts = trust_section(analysis, full=full)
    if doubts is not None:
        sections.append(("How far to trust this", doubts))
    parts = [*_header(analysis, full=full), Text(), verdict_section(verdict, full=full), *under_headings(sections)]
    return Group(*parts) if full else Group(*parts, Text(), Text(_MORE, style="dim"))


def time_heading(analysis: Analysis) -> str:
    """Return the heading above bars and table."""
    unit = unit_of(analysis)
    return "Where the recording's time goes" if unit == "recording" else f"Where a {unit}'s time goes"


def _header(analysis: Analysis, *, full: bool) -> list[Text]:
    software = software_line(analysis) if full else ""
    return [
        Text(what_ran(analysis), style="bold"),
        *([Text(software, style="dim")] if software else []),
        step_line(analysis),
        *(Text(line, style="dim") for line in header_lines(analysis)),
    ]


def _time_section(analysis: Analysis, console: Console, *, all_ranks: bool, full: bool) -> Group | None:
    """Return bars, table, what explains them and who waited for whom; None without a device."""
    rows, note = rows_of(analysis.devices, all_ranks=all_ranks)
    if not rows:
        return None
    fill = fills(console)
    bars = stacked_bars(rows, fill, console.width)
    parts: list[RenderableType] = [bars, legend(buckets_seen(rows), fill, console.width), Text()]
    parts.append(rank_table(rows, console))
    recorded = recorded_steps_note(analysis)
    overlapped = f"{OVERLAPPED}: {OVERLAPPED_WORDS}" if overlaps(rows) else ""
    parts += [Text(line, style="dim") for line in (recorded, overlapped, note) if line]
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    below = [Text(line) for line in explained_lines(analysis, unexplained_only=not full)]
    below += [] if full else waits[:_FEW_WAITS]
    return Group(*parts, *([Text(), *below] if below else []))


def _details(analysis: Analysis, console: Console) -> list[tuple[str, RenderableType]]:
    sections: list[tuple[str, RenderableType]] = []
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    if waits:
        sections.append(("Waits", Group(*waits)))
    if analysis.findings:
        sections.append(("Findings", findings_section(analysis)))
    if analysis.collectives:
        sections.append(("Collectives", collectives_table(analysis.collectives, console.width)))
    if analysis.kernels:
        heading = "Operators" if on_processors(analysis) else "Kernels"
        sections.append((heading, kernels_table(analysis.kernels, heading, console.width)))
    if analysis.modules is not None:
        sections.append(("Modules", modules_section(analysis.modules, console.width)))
    return sections
