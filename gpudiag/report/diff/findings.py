"""Findings that came and went, and what stands in the way of comparing two runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import Finding
from gpudiag.model.diff import Diff, FindingChange
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.layout import plain_grid
from gpudiag.report.palette import SEVERITY_STYLE

MOST_FINDINGS = 12
_LONGEST = 300
_WITHIN_A_RUN = "Noise here is how steps scatter within each run; two starts of the same code may differ by more."


def findings_table(findings: Sequence[FindingChange]) -> Table:
    """A line each: what became of it, how bad it is, what it says, and what it costs."""
    table = plain_grid({"no_wrap": True}, {})
    for change in findings[:MOST_FINDINGS]:
        table.add_row(Text(change.status), _line(change))
    if len(findings) > MOST_FINDINGS:
        table.add_row(Text(""), Text(f"and {len(findings) - MOST_FINDINGS} more", style="dim"))
    return table


def _line(change: FindingChange) -> Text:
    shown = change.after if change.after is not None else change.before
    if shown is None:
        return Text("")
    line = Text(_value(shown.code), style=SEVERITY_STYLE[shown.severity])
    line.append(" ", style="default not bold")
    if change.before is not None and change.after is not None:
        old, new = _facts(change.before), _facts(change.after)
        return line.append(new if old == new else f"{old} → {new}", style="default not bold")
    title = _value(shown.title)
    return line.append(f"{_facts(shown)}{': ' if title else ''}{title}", style="default not bold")


def _facts(finding: Finding) -> str:
    facts: list[str] = [finding.severity]
    facts += [figures.ranks(finding.ranks)] if finding.ranks else []
    if finding.recoverable_ms_per_step is not None and finding.recoverable_ms_per_step > 0:
        facts.append(f"saves {figures.milliseconds(finding.recoverable_ms_per_step)} ms")
    return f"({', '.join(facts)})"


def doubt_lines(diff: Diff) -> list[Text]:
    """What differs between the runs themselves, then why to trust the figures of either less."""
    lines = []
    for unlike in diff.run_differences:
        line = Text(f"{unlike.what} {_value(unlike.before)} → {_value(unlike.after)}: ", style="yellow")
        lines.append(line.append(unlike.message, style="default"))
    if diff.parts_reason:
        lines.append(Text(f"No parts: {diff.parts_reason}."))
    said: dict[tuple[str, str], list[str]] = {}
    for warning in diff.validity:
        runs = said.setdefault((warning.code, warning.message), [])
        if warning.run not in runs:
            runs.append(warning.run)
    for (code, message), runs in said.items():
        letters = " and ".join("A" if run == "before" else "B" for run in runs)
        line = Text(f"{letters}: {_value(code)}: ", style="yellow")
        lines.append(line.append(_value(message), style="default"))
    if diff.outcome in {"slower", "faster"}:
        lines.append(Text(_WITHIN_A_RUN, style="dim"))
    return lines


def _value(text: str) -> str:
    return one_line(text)[:_LONGEST]
