"""The verdict, the findings behind it, how far to trust them, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.evidence import evidence_items
from gpudiag.reporting.palette import SEVERITY_STYLE
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from gpudiag.model.analysis import Analysis, Finding, Validity

#: A line of someone else's text is cut here; no rule writes longer ones.
LONGEST_TEXT = 400
_INDENT = 3


def verdict(analysis: Analysis) -> RenderableType:
    """The largest finding: how bad, what, and what it is worth."""
    if not analysis.findings:
        return Text("No finding: these traces do not carry a verdict. See the warnings below.", style="bold")
    finding = analysis.findings[0]
    headline = Text()
    headline.append(finding.severity.upper(), style=_style(finding)).append("  ")
    headline.append(_title(finding), style="bold")
    return Group(headline, Text(_worth(finding)))


def findings_section(findings: Sequence[Finding]) -> RenderableType:
    """Every finding with its evidence and its advice as steps."""
    parts: list[RenderableType] = []
    for number, finding in enumerate(findings, start=1):
        heading = Text(f"{number}. ")
        heading.append(_title(finding), style="bold")
        parts += [heading, Padding(_details(finding), (0, 0, 0, _INDENT))]
    return Group(*parts)


def _details(finding: Finding) -> RenderableType:
    facts = Text(one_line(finding.code)[:LONGEST_TEXT], style=_style(finding))
    facts.append(f" · {finding.severity}", style="default not bold")
    if finding.ranks:
        facts.append(f" · {figures.ranks(finding.ranks)}", style="default not bold")
    if finding.cause:
        facts.append(f" · cause: {one_line(finding.cause)[:LONGEST_TEXT]}", style="default not bold")
    parts: list[RenderableType] = [facts, Text(_worth(finding))]
    evidence = evidence_items(finding.evidence)
    if evidence:
        parts.append(Text(f"Evidence: {'; '.join(evidence)}", style="dim"))
    steps = Table.grid(padding=(0, 1, 0, 0))
    steps.add_column(no_wrap=True)
    steps.add_column()
    for advice in finding.advice:
        steps.add_row(Text("→"), Text(one_line(advice)[:LONGEST_TEXT]))
    return Group(*parts, steps)


def _style(finding: Finding) -> str:
    return SEVERITY_STYLE[finding.severity]


def _title(finding: Finding) -> str:
    return one_line(finding.title or finding.code)[:LONGEST_TEXT]


def _worth(finding: Finding) -> str:
    if finding.recoverable_ms_per_step is None:
        return f"What it costs is not known. Confidence: {finding.confidence}."
    share = finding.recoverable_percent
    percent = "" if share is None else f" ({figures.percent(share, 100)})"
    saved = figures.milliseconds(finding.recoverable_ms_per_step)
    return f"Without it a step would be {saved} ms shorter{percent}. Confidence: {finding.confidence}."


def validity_section(validity: Sequence[Validity]) -> RenderableType:
    """Why to trust the figures less."""
    lines = []
    for warning in validity:
        line = Text()
        line.append(f"{one_line(warning.code)[:LONGEST_TEXT]}: ", style="yellow")
        lines.append(line.append(one_line(warning.message)[:LONGEST_TEXT]))
    return Group(*lines)


def next_step(analysis: Analysis) -> str:
    """The one thing to do now, and how to see whether it helped."""
    worthwhile = [finding for finding in analysis.findings if finding.severity != "info" and finding.advice]
    if not worthwhile:
        advice = [finding.advice[0] for finding in analysis.findings if finding.advice]
        return one_line(advice[0])[:LONGEST_TEXT] if advice else "Record again as the warnings say."
    finding = worthwhile[0]
    step = one_line(finding.advice[0])[:LONGEST_TEXT]
    gain = finding.recoverable_ms_per_step
    if gain is None or gain <= 0 or gain >= analysis.steps.mean_ms:
        return f"{step} Then record and analyse again."
    before, after = analysis.steps.mean_ms, analysis.steps.mean_ms - gain
    return (
        f"{step} Then record and analyse again: the step should fall from {figures.milliseconds(before)} "
        f"towards {figures.milliseconds(after)} ms."
    )
