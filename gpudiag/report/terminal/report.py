"""The terminal report of a run: header, verdict, step time by bucket, other findings, warnings."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.report.console import print_trimmed, under_headings
from gpudiag.report.header import (
    header_lines,
    on_processors,
    recorded_steps_note,
    software_line,
    step_line,
    unit_of,
    what_ran,
)
from gpudiag.report.palette import fills
from gpudiag.report.rank_rows import buckets_seen, overlapped_note, rows_of
from gpudiag.report.terminal.findings import findings_section, other_findings_section, trust_section, verdict_section
from gpudiag.report.terminal.ranks import legend, rank_table, stacked_bars
from gpudiag.report.terminal.traffic import collectives_table, kernels_table, modules_section, wait_lines
from gpudiag.report.verdict import explained_lines, verdict_of

#: Lines on waits in a short report.
_FEW_WAITS = 2
_MORE = "More: `gpudiag analyze --full` (evidence, kernels, modules), `gpudiag report --html FILE` (timeline)"


def render_analysis(analysis: Analysis, console: Console, *, all_ranks: bool = False, full: bool = False) -> None:
    """Print the report.

    Args:
        analysis: what to show.
        console: where, and how wide.
        all_ranks: show every rank, however many there are.
        full: also show evidence, all advice, collectives, kernels and modules.
    """
    verdict = verdict_of(analysis)
    sections: list[tuple[str, RenderableType | None]] = [
        (time_heading(analysis), _time_section(analysis, console, all_ranks=all_ranks, full=full))
    ]
    if full:
        sections += _details(analysis, console)
    else:
        sections.append(("Other findings", other_findings_section(analysis, verdict)))
    sections.append(("How far to trust this", trust_section(analysis, full=full)))
    present = [(heading, section) for heading, section in sections if section is not None]
    more = [] if full else [Text(), Text(_MORE, style="dim")]
    header = _header(analysis, full=full)
    print_trimmed(console, Group(*header, Text(), verdict_section(verdict, full=full), *under_headings(present), *more))


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
    """Return bars, table, explanations and waits; None without a device."""
    rows, note = rows_of(analysis.devices, all_ranks=all_ranks)
    if not rows:
        return None
    fill = fills(console)
    notes = (recorded_steps_note(analysis), overlapped_note(rows), note)
    below = [Text(line) for line in explained_lines(analysis, unexplained_only=not full)]
    below += [] if full else wait_lines(analysis.waits, analysis.steps.mean_ms)[:_FEW_WAITS]
    return Group(
        stacked_bars(rows, fill, console.width),
        legend(buckets_seen(rows), fill, console.width),
        Text(),
        rank_table(rows, console),
        *(Text(line, style="dim") for line in notes if line),
        *([Text(), *below] if below else []),
    )


def _details(analysis: Analysis, console: Console) -> list[tuple[str, RenderableType | None]]:
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    kernels = "Operators" if on_processors(analysis) else "Kernels"
    width = console.width
    return [
        ("Waits", Group(*waits) if waits else None),
        ("Findings", findings_section(analysis) if analysis.findings else None),
        ("Collectives", collectives_table(analysis.collectives, width) if analysis.collectives else None),
        (kernels, kernels_table(analysis.kernels, kernels, width) if analysis.kernels else None),
        ("Modules", modules_section(analysis.modules, width) if analysis.modules is not None else None),
    ]
