"""Lay out the full report of a run: the verdict, step time by bucket, all findings with evidence, tables, warnings.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudiag.model.analysis import Analysis, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.report import header
from gpudiag.report import verdict as words
from gpudiag.report.compute_rows import compute_line
from gpudiag.report.console import and_more, numbered, plain_grid, under_headings
from gpudiag.report.palette import SEVERITY_STYLE, fills
from gpudiag.report.rank_rows import buckets_seen, overlapped_note, rows_of
from gpudiag.report.source_rows import SOURCE_COLUMNS, SourceRow, source_cells, source_tables
from gpudiag.report.terminal.ranks import legend, rank_table, stacked_bars
from gpudiag.report.terminal.traffic import (
    collectives_table,
    compute_table,
    kernels_table,
    modules_section,
    tries_section,
    wait_lines,
)
from gpudiag.report.try_rows import TRIES_HEADING

_INDENT = 2
#: Maximum number of findings. Rendering 20,000 findings of a hostile file would take a minute.
_MOST_FINDINGS = 200


def full_report(analysis: Analysis, console: Console, *, all_ranks: bool = False) -> Group:
    """Return the report with evidence, all advice, collectives, classes of kernels, kernels and modules."""
    verdict = words.verdict_of(analysis)
    sections: list[tuple[str, RenderableType | None]] = [
        (header.time_heading(analysis), _time_section(analysis, console, all_ranks=all_ranks))
    ]
    if analysis.parallelism is not None:
        from gpudiag.report.terminal.parallelism import parallel_sections  # noqa: PLC0415  # most jobs divide batches

        sections += parallel_sections(analysis, analysis.parallelism, console, all_ranks=all_ranks)
    sections += [(heading, _source_table(rows)) for heading, rows in source_tables(analysis)]
    sections += _details(analysis, console)
    sections.append((TRIES_HEADING, tries_section(analysis)))
    sections.append(("How far to trust this", _warnings(analysis)))
    return Group(*_header(analysis), Text(), _verdict_section(verdict), *under_headings(sections))


def _header(analysis: Analysis) -> list[Text]:
    """Return lines about the workload, the software versions, the step time and the host."""
    software = header.software_line(analysis)
    return [
        Text(header.what_ran(analysis), style="bold"),
        *([Text(software, style="dim")] if software else []),
        header.step_line(analysis),
        *(Text(line, style="dim") for line in header.header_lines(analysis)),
    ]


def _time_section(analysis: Analysis, console: Console, *, all_ranks: bool) -> Group | None:
    """Return bars, table and explanations; None without a device."""
    rows, note = rows_of(analysis.devices, all_ranks=all_ranks)
    if not rows:
        return None
    fill = fills(console)
    notes = (header.recorded_steps_note(analysis), overlapped_note(rows), compute_line(analysis), note)
    below = [Text(line) for line in words.explained_lines(analysis)]
    return Group(
        stacked_bars(rows, fill, console.width),
        legend(buckets_seen(rows), fill, console.width),
        Text(),
        rank_table(rows, console),
        *(Text(line, style="dim") for line in notes if line),
        *([Text(), *below] if below else []),
    )


def _source_table(rows: list[SourceRow]) -> RenderableType:
    """Return a table of source lines; lines that findings name are bold."""
    table = plain_grid(
        {"no_wrap": True}, {"no_wrap": True, "justify": "right"}, {"no_wrap": True, "justify": "right"}, {}, gap=2
    )
    table.add_row(*(Text(heading, style="dim") for heading in SOURCE_COLUMNS))
    for row in rows:
        place, ms, idle, text = source_cells(row)
        style = "bold" if row.marked else ""
        table.add_row(Text(place, style=style), Text(ms, style=style), Text(idle), Text(text, style=style))
    return table


def _details(analysis: Analysis, console: Console) -> list[tuple[str, RenderableType | None]]:
    """Return the sections that only a full report has."""
    waits = wait_lines(analysis.waits, analysis.steps.mean_ms)
    kernels = "Operators" if header.on_processors(analysis) else "Kernels"
    width = console.width
    return [
        ("Waits", Group(*waits) if waits else None),
        ("Findings", _findings(analysis) if analysis.findings else None),
        ("Collectives", collectives_table(analysis.collectives, width) if analysis.collectives else None),
        ("Compute", compute_table(analysis) if analysis.compute_classes else None),
        (kernels, kernels_table(analysis.kernels, kernels, width) if analysis.kernels else None),
        ("Modules", modules_section(analysis.modules, width) if analysis.modules is not None else None),
    ]


def _verdict_section(verdict: words.ReportVerdict) -> RenderableType:
    """Return severity, title, savings, location and advice."""
    headline = Text()
    if verdict.severity is not None:
        headline.append(verdict.severity.upper(), style=SEVERITY_STYLE[verdict.severity]).append("  ")
    headline.append(verdict.title, style="bold")
    confidence = f"confidence: {verdict.confidence}" if verdict.confidence else ""
    if confidence and not verdict.gain:
        headline.append(f" ({confidence})")
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    if verdict.gain:
        rows.add_row(Text("Gain"), Text(f"{verdict.gain}; {confidence}"))
        if verdict.parts:
            rows.add_row(Text(), Text(f"saved time: {verdict.parts}"))
    if verdict.where:
        rows.add_row(Text("Where"), Text(verdict.where))
    if verdict.instead:
        rows.add_row(Text(), Text(verdict.instead))
    rows.add_row(Text("Try" if verdict.advised else "Next"), numbered(verdict.steps))
    if verdict.path:
        rows.add_row(Text(), Group(Text(words.PATH_HEADING), numbered(verdict.path)))
    return Group(headline, Padding(rows, (0, 0, 0, _INDENT), expand=False))


def _findings(analysis: Analysis) -> RenderableType:
    """Return every finding with its evidence, and with its advice unless the verdict has it already."""
    headline = words.verdict_of(analysis).headline
    advice_of_verdict = () if headline is None else headline.advice
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, finding in enumerate(analysis.findings[:_MOST_FINDINGS], start=1):
        title = Text(words.title_of(finding), style="bold")
        advice = tuple(step for step in finding.advice if step not in advice_of_verdict)
        table.add_row(Text(f"{number}."), Group(title, _finding_details(finding, advice, analysis)))
    return Group(table, *and_more([], len(analysis.findings) - _MOST_FINDINGS))


def _finding_details(finding: Finding, advice: tuple[str, ...], analysis: Analysis) -> RenderableType:
    """Return code, ranks, savings and evidence of a finding, followed by the advice."""
    facts = Text(words.about(finding))
    facts.stylize(SEVERITY_STYLE[finding.severity], 0, len(one_line(finding.code)[: words.LONGEST_TEXT]))
    steps = plain_grid({"no_wrap": True}, {}, gap=1)
    for step in advice:
        steps.add_row(Text("→"), Text(one_line(step)[: words.LONGEST_TEXT]))
    return Group(facts, *map(Text, words.finding_lines(finding, analysis)), steps)


def _warnings(analysis: Analysis) -> RenderableType | None:
    """Return the reasons to trust the figures less, and the reasons for missing figures."""
    doubts = words.doubts(analysis)
    lines = [Text(f"{code}: ", style="yellow").append(why, style="default") for code, why in doubts]
    return Group(*lines) if lines else None
