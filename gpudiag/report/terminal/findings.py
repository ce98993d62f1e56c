"""The verdict, the findings behind it, how far to trust them, and what to do next."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import Analysis, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.report import verdict as words
from gpudiag.report.layout import and_more, plain_grid
from gpudiag.report.palette import SEVERITY_STYLE

#: Far more than an analysis has; drawing 20,000 of a file would take a minute.
_MOST = 200


def verdict(analysis: Analysis) -> RenderableType:
    """The finding that matters most: how bad, what, what fixing it would save, where it is, what would do instead."""
    finding = words.headline_finding(analysis)
    if finding is None:
        see = "" if analysis.source.input_only else " See the warnings below."
        return Text(f"{words.no_finding(analysis)}{see}", style="bold")
    headline = Text()
    headline.append(finding.severity.upper(), style=SEVERITY_STYLE[finding.severity]).append("  ")
    headline.append(words.title_of(finding), style="bold")
    lines = (words.savings(finding, analysis.steps.mean_ms), words.where(finding), words.or_instead(finding, analysis))
    return Group(headline, *(Text(line) for line in lines if line))


def findings_section(analysis: Analysis) -> RenderableType:
    """Every finding with its evidence and its advice as steps."""
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, finding in enumerate(analysis.findings[:_MOST], start=1):
        title = Text(words.title_of(finding), style="bold")
        table.add_row(Text(f"{number}."), Group(title, _details(finding, analysis)))
    more = and_more([], len(analysis.findings) - _MOST)
    return Group(table, *more) if more else table


def _details(finding: Finding, analysis: Analysis) -> RenderableType:
    facts = Text(words.about(finding))
    facts.stylize(SEVERITY_STYLE[finding.severity], 0, len(one_line(finding.code)[: words.LONGEST_TEXT]))
    steps = plain_grid({"no_wrap": True}, {}, gap=1)
    for advice in finding.advice:
        steps.add_row(Text("→"), Text(one_line(advice)[: words.LONGEST_TEXT]))
    return Group(facts, *(Text(line) for line in words.finding_lines(finding, analysis)), steps)


def trust_section(analysis: Analysis) -> RenderableType | None:
    """Why to trust the figures less, and which are missing; None when there is nothing to say."""
    said = words.doubts(analysis)
    return (
        Group(*(Text(f"{code}: ", style="yellow").append(why, style="default") for code, why in said)) if said else None
    )


def next_section(analysis: Analysis) -> RenderableType:
    """The one thing to do now, and the path of fixes after it."""
    path = words.path_lines(analysis)
    steps = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, line in enumerate(path, start=1):
        steps.add_row(Text(f"{number}."), Text(line))
    step = Text(words.next_step(analysis))
    return Group(step, Text(words.PATH_HEADING), steps) if path else step
