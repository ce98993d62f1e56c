"""Print the report of a run: verdict, gain, location, advice, a bar per rank, and a line about everything else."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Analysis
from gpudiag.report import header
from gpudiag.report import verdict as words
from gpudiag.report.console import commands_with_purposes, numbered, plain_grid, print_trimmed, under_headings
from gpudiag.report.palette import SEVERITY_STYLE, fills
from gpudiag.report.rank_rows import rows_of
from gpudiag.report.terminal import brief
from gpudiag.report.terminal.ranks import buckets_drawn, joined, legend, stacked_bars

#: Maximum number of advice lines.
_FEW_STEPS = 3
#: Narrower terminals have no notes beside bars.
_WIDE = 72
_INDENT = "  "


def render_analysis(
    analysis: Analysis,
    console: Console,
    *,
    all_ranks: bool = False,
    full: bool = False,
    paths: Sequence[str] = (),
    page: str = "",
    command: str = "analyze",
) -> None:
    """Print the report.

    Args:
        analysis: the run.
        console: the terminal.
        all_ranks: whether to draw more than eight ranks.
        full: whether to print the full report, with evidence, all advice, all sections and all tables.
        paths: the paths of the run as the user gave them, for the commands below a short report.
        page: path of the run's HTML page, if it exists.
        command: the command that reads these paths.
    """
    if full:
        from gpudiag.report.terminal.full_report import full_report  # noqa: PLC0415  # most reports are short

        print_trimmed(console, full_report(analysis, console, all_ranks=all_ranks))
        return
    verdict = words.verdict_of(analysis)
    parts = (
        Group(*_header(analysis)),
        _verdict(verdict, analysis),
        _bars(analysis, console, all_ranks=all_ranks),
        _tries(analysis),
        _rest(analysis, verdict, console, brief.commands_for_more(analysis, verdict, paths, page, command)),
    )
    present = [part for part in parts if part is not None]
    print_trimmed(console, Group(present[0], *(item for part in present[1:] for item in (Text(), part))))


def _header(analysis: Analysis) -> list[Text]:
    """Return lines on the job, its step time and its simulated ranks; if a run only loads data, also its times."""
    steps = header.step_line(analysis)
    mfu = brief.utilization(analysis)
    lines = [Text(brief.title_line(analysis), style="bold"), steps.append(f" · {mfu}" if mfu else "")]
    lines += [Text(line, style="dim") for line in header.sample_lines(analysis)]
    return lines + [Text(line) for line in header.host_lines(analysis) if analysis.source.input_only]


def _verdict(verdict: words.ReportVerdict, analysis: Analysis) -> RenderableType:
    """Return severity, title, gain, location and advice, with the labels in one column."""
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    title = Text(verdict.title, style="bold")
    gain = brief.gain(verdict)
    if not verdict.gain and gain:
        title.append(f" ({gain})", style="not bold")
    if verdict.severity is not None:
        rows.add_row(Text(verdict.severity.upper(), style=SEVERITY_STYLE[verdict.severity]), title)
    if verdict.gain:
        rows.add_row(Text(f"{_INDENT}Gain"), Text(gain))
    located = brief.location(verdict, analysis)
    if located:
        rows.add_row(Text(f"{_INDENT}Where"), Text(" · ".join(located)))
    steps = verdict.steps[:_FEW_STEPS]
    rows.add_row(Text(f"{_INDENT}{'Try' if verdict.advised else 'Next'}"), numbered(steps))
    if verdict.instead:
        rows.add_row(Text(f"{_INDENT}Or"), Text(verdict.instead.removeprefix(words.ALTERNATIVE)))
    return rows if verdict.severity is not None else Group(title, rows)


def _bars(analysis: Analysis, console: Console, *, all_ranks: bool) -> RenderableType | None:
    """Return a bar per rank with its largest buckets, and the legend; None without a device."""
    rows, omitted = rows_of(analysis.devices, all_ranks=all_ranks)
    if not rows:
        return None
    fill = fills(console)
    notes = [brief.bar_note(row, analysis.waits) for row in rows] if console.width >= _WIDE else ()
    below = (brief.bars_note(analysis), omitted)
    return Group(
        stacked_bars(rows, fill, console.width, notes),
        legend(buckets_drawn(rows, console.width, notes), fill, console.width),
        *(Text(line, style="dim") for line in below if line),
    )


def _tries(analysis: Analysis) -> RenderableType | None:
    """Return the tried changes, which the user asked for; None if nothing was tried."""
    if not analysis.tries:
        return None
    from gpudiag.report.terminal.traffic import tries_section  # noqa: PLC0415  # only with --try
    from gpudiag.report.try_rows import TRIES_HEADING  # noqa: PLC0415  # likewise

    # Without the empty line before the heading.
    return Group(*under_headings([(TRIES_HEADING, tries_section(analysis))])[1:])


def _rest(
    analysis: Analysis, verdict: words.ReportVerdict, console: Console, commands: Sequence[tuple[str, str]]
) -> RenderableType:
    """Return the line on everything else, and the commands that show more."""
    rows = plain_grid({"no_wrap": True}, {}, gap=2)
    also = _also(analysis, verdict)
    if also:
        rows.add_row(Text("Also"), joined(also, console.width - len("Also  "), " "))
    rows.add_row(Text("More"), commands_with_purposes(commands, console.width - len("More  ")))
    return rows


def _also(analysis: Analysis, verdict: words.ReportVerdict) -> list[Text]:
    """Return the other findings, unexplained time and the warnings, with the punctuation between them."""
    items, omitted = brief.other_items(analysis, verdict)
    findings = [
        Text().append(item.name, style=SEVERITY_STYLE[item.severity]).append(f" {item.saved}" if item.saved else "")
        for item in items
    ]
    findings += [Text(f"{omitted} more")] if omitted else []
    unexplained = [Text(part) for part in brief.unexplained_words(analysis, verdict)]
    warnings = [Text().append(part, style="yellow") for part in brief.warning_words(analysis, verdict)]
    groups = [group for group in (findings, unexplained, warnings) if group]
    for group in groups:
        for text in group[:-1]:
            text.append(",")
        if group is not groups[-1]:
            group[-1].append(";")
    return [text for group in groups for text in group]
