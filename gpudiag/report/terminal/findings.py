"""The verdict, the findings, and the warnings in a terminal report."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gpudiag.model.analysis import Analysis, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.report import verdict as words
from gpudiag.report.console import and_more, plain_grid
from gpudiag.report.palette import SEVERITY_STYLE
from gpudiag.report.verdict import ReportVerdict

#: Pieces of advice, and findings besides the verdict, in a short report.
_FEW_STEPS = 3
_FEW_FINDINGS = 4
_INDENT = 2
#: Far more findings than an analysis has; rendering 20,000 of a hostile file would take a minute.
_MOST_FINDINGS = 200


def verdict_section(verdict: ReportVerdict, *, full: bool) -> RenderableType:
    """Return severity, title, gain, location and advice."""
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
        if verdict.parts and full:
            rows.add_row(Text(), Text(f"saved time: {verdict.parts}"))
    if verdict.where:
        rows.add_row(Text("Where"), Text(verdict.where))
    if verdict.instead:
        rows.add_row(Text(), Text(verdict.instead))
    steps = verdict.steps if full else verdict.steps[:_FEW_STEPS]
    rows.add_row(Text("Try" if verdict.advised else "Next"), _numbered(steps))
    if verdict.path and full:
        rows.add_row(Text(), Group(Text(words.PATH_HEADING), _numbered(verdict.path)))
    return Group(headline, Padding(rows, (0, 0, 0, _INDENT), expand=False))


def _numbered(lines: tuple[str, ...]) -> RenderableType:
    if len(lines) == 1:
        return Text(lines[0])
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, line in enumerate(lines, start=1):
        table.add_row(Text(f"{number}."), Text(line))
    return table


def other_findings_section(analysis: Analysis, verdict: ReportVerdict) -> RenderableType | None:
    """Return the findings besides the verdict, each with its title and a line on its savings."""
    others = words.other_findings(analysis, verdict)
    table = plain_grid({"no_wrap": True}, {}, gap=1)
    for finding in others[:_FEW_FINDINGS]:
        saves = words.saves(finding, analysis)
        facts = (words.about(finding), saves[:1].lower() + saves[1:], f"confidence: {finding.confidence}")
        about = Text(" · ".join(filter(None, facts)), style="dim")
        table.add_row(Text("-"), Group(Text(words.title_of(finding)), about))
    return Group(table, *and_more([], len(others) - _FEW_FINDINGS)) if others else None


def findings_section(analysis: Analysis) -> RenderableType:
    """Return every finding with its evidence, and with advice that the verdict has not given."""
    headline = words.verdict_of(analysis).headline
    given = () if headline is None else headline.advice
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, finding in enumerate(analysis.findings[:_MOST_FINDINGS], start=1):
        title = Text(words.title_of(finding), style="bold")
        advice = tuple(step for step in finding.advice if step not in given)
        table.add_row(Text(f"{number}."), Group(title, _details(finding, advice, analysis)))
    return Group(table, *and_more([], len(analysis.findings) - _MOST_FINDINGS))


def _details(finding: Finding, advice: tuple[str, ...], analysis: Analysis) -> RenderableType:
    facts = Text(words.about(finding))
    facts.stylize(SEVERITY_STYLE[finding.severity], 0, len(one_line(finding.code)[: words.LONGEST_TEXT]))
    steps = plain_grid({"no_wrap": True}, {}, gap=1)
    for step in advice:
        steps.add_row(Text("→"), Text(one_line(step)[: words.LONGEST_TEXT]))
    return Group(facts, *map(Text, words.finding_lines(finding, analysis)), steps)


def trust_section(analysis: Analysis, *, full: bool = True) -> RenderableType | None:
    """Return the reasons to trust the figures less, and if `full` the missing figures; None without any."""
    doubts = words.doubts(analysis, missing=full)
    lines = [Text(f"{code}: ", style="yellow").append(why, style="default") for code, why in doubts]
    return Group(*lines) if lines else None
