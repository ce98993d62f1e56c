"""The verdict, the findings behind it, how far to trust them, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Finding, Steps, Validity
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.evidence import evidence_items
from gpudiag.report.layout import plain_grid
from gpudiag.report.palette import SEVERITY_STYLE

#: A line of someone else's text is cut here; no rule writes longer ones.
LONGEST_TEXT = 400
#: The key of the evidence that says why a finding has no figure.
_REASON = "reason"
MOST_REASONS = 4
_STEP_TIMES = {"unprofiled_mean_ms": "unprofiled", "corrected_mean_ms": "corrected"}


def verdict(analysis: Analysis) -> RenderableType:
    """The finding that matters most: how bad, what, and what it is worth."""
    finding = main_finding(analysis.findings)
    if finding is None:
        return Text("No finding: these traces do not carry a verdict. See the warnings below.", style="bold")
    headline = Text()
    headline.append(finding.severity.upper(), style=_style(finding)).append("  ")
    headline.append(title_of(finding), style="bold")
    return Group(headline, Text(worth(finding, analysis.steps.mean_ms)))


def main_finding(findings: Sequence[Finding]) -> Finding | None:
    """The largest finding that is worth acting on; where none is, the one that says so, else the largest."""
    worthwhile = [finding for finding in findings if finding.severity != "info"]
    plain = [finding for finding in findings if finding.code == "compute-bound"]
    return next(iter([*worthwhile, *plain, *findings]), None)


def findings_section(findings: Sequence[Finding], step_ms: float) -> RenderableType:
    """Every finding with its evidence and its advice as steps."""
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, finding in enumerate(findings, start=1):
        table.add_row(Text(f"{number}."), Group(Text(title_of(finding), style="bold"), _details(finding, step_ms)))
    return table


def _details(finding: Finding, step_ms: float) -> RenderableType:
    facts = Text(one_line(finding.code)[:LONGEST_TEXT], style=_style(finding))
    facts.append(f" · {finding.severity}", style="default not bold")
    if finding.ranks:
        facts.append(f" · {figures.ranks(finding.ranks)}", style="default not bold")
    if finding.cause:
        facts.append(f" · cause: {one_line(finding.cause)[:LONGEST_TEXT]}", style="default not bold")
    parts: list[RenderableType] = [facts, Text(worth(finding, step_ms))]
    evidence = evidence_items({key: value for key, value in finding.evidence.items() if key != _REASON})
    if evidence:
        parts.append(Text(f"Evidence: {'; '.join(evidence)}"))
    steps = plain_grid({"no_wrap": True}, {}, gap=1)
    for advice in finding.advice:
        steps.add_row(Text("→"), Text(one_line(advice)[:LONGEST_TEXT]))
    return Group(*parts, steps)


def _style(finding: Finding) -> str:
    return SEVERITY_STYLE[finding.severity]


def title_of(finding: Finding) -> str:
    """Its title as a sentence begins, short enough for a line."""
    title = one_line(finding.title or finding.code)[:LONGEST_TEXT]
    return title[:1].upper() + title[1:]


def worth(finding: Finding, step_ms: float) -> str:
    """What removing the cause would save, and how sure that is."""
    confidence = f"Confidence: {finding.confidence}."
    if finding.recoverable_ms_per_step is None:
        reason = one_line(str(finding.evidence.get(_REASON, "")))[:LONGEST_TEXT]
        return f"What it would save is not known: {reason}. {confidence}" if reason else confidence
    if finding.recoverable_ms_per_step <= 0:
        return confidence
    share = finding.recoverable_percent
    percent = "" if share is None else f" ({figures.percent(share, 100)})"
    saved = figures.milliseconds(finding.recoverable_ms_per_step, beside=step_ms)
    return f"Without it a step would be {saved} ms shorter{percent}. {confidence}"


def trust_section(validity: Sequence[Validity], steps: Steps) -> RenderableType | None:
    """Why to trust the figures less, and which are missing; None when there is nothing to say."""
    lines = []
    for warning in validity:
        line = Text()
        line.append(f"{one_line(warning.code)[:LONGEST_TEXT]}: ", style="yellow")
        lines.append(line.append(one_line(warning.message)[:LONGEST_TEXT]))
    for key, reason in list(steps.reasons.items())[:MOST_REASONS]:
        if getattr(steps, key, None) is None:
            name = _STEP_TIMES.get(key, one_line(key)[:LONGEST_TEXT])
            lines.append(Text(f"No {name} step time: {one_line(reason)[:LONGEST_TEXT]}"))
    return Group(*lines) if lines else None


def next_step(analysis: Analysis) -> str:
    """The one thing to do now, and how to see whether it helped."""
    finding = main_finding([finding for finding in analysis.findings if finding.advice])
    untrusted = any(validity.code in UNTRUSTED_CODES for validity in analysis.validity)
    if finding is None or untrusted:
        return "Record again as the warnings say."
    step = one_line(finding.advice[0])[:LONGEST_TEXT]
    if finding.severity == "info":
        return step
    steps = analysis.steps
    real = steps.unprofiled_mean_ms or steps.corrected_mean_ms
    gain, before = finding.recoverable_ms_per_step, real or steps.mean_ms
    if gain is None or not 0 < gain < before:
        return f"{step} Then record and analyse again."
    after = figures.milliseconds(before - gain, beside=before)
    which = "the step, without the profiler," if real else "the step"
    return (
        f"{step} Then record and analyse again: {which} should fall from {figures.milliseconds(before)} "
        f"towards {after} ms."
    )
