"""Findings that came and went, and what stands in the way of comparing two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.palette import SEVERITY_STYLE
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.analysis import Finding
    from gpudiag.model.diff import Diff, FindingChange

MOST_FINDINGS = 12
_LONGEST = 300
_WITHIN_A_RUN = "Noise here is how steps scatter within each run; two starts of the same code may differ by more."


def findings_table(findings: Sequence[FindingChange]) -> Table:
    """A line each: what became of it, how bad it is, what it says, and what it costs."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for change in findings[:MOST_FINDINGS]:
        table.add_row(Text(change.status), _line(change))
    if len(findings) > MOST_FINDINGS:
        table.add_row(Text(""), Text(f"and {len(findings) - MOST_FINDINGS} more", style="dim"))
    return table


def _line(change: FindingChange) -> Text:
    shown = change.after if change.after is not None else change.before
    if shown is None:
        return Text("")
    line = Text(one_line(shown.code)[:_LONGEST], style=SEVERITY_STYLE[shown.severity])
    line.append(" ", style="default not bold")
    if change.before is not None and change.after is not None:
        old, new = _facts(change.before), _facts(change.after)
        return line.append(new if old == new else f"{old} → {new}", style="default not bold")
    title = one_line(shown.title)[:_LONGEST]
    return line.append(f"{_facts(shown)}{': ' if title else ''}{title}", style="default not bold")


def _facts(finding: Finding) -> str:
    facts: list[str] = [finding.severity]
    facts += [figures.ranks(finding.ranks)] if finding.ranks else []
    if finding.recoverable_ms_per_step is not None and finding.recoverable_ms_per_step > 0:
        facts.append(f"{figures.milliseconds(finding.recoverable_ms_per_step)} ms recoverable")
    return f"({', '.join(facts)})"


def doubt_lines(diff: Diff) -> list[Text]:
    """What differs between the runs themselves, then why to trust the figures of either less."""
    lines = []
    for one in diff.unlike:
        line = Text(f"{one.what} {_value(one.before)} → {_value(one.after)}: ", style="yellow")
        lines.append(line.append(one.message, style="default"))
    if diff.parts_reason:
        lines.append(Text(f"No parts: {diff.parts_reason}."))
    said: dict[tuple[str, str], list[str]] = {}
    for warning in diff.validity:
        runs = said.setdefault((warning.code, warning.message), [])
        if warning.run not in runs:
            runs.append(warning.run)
    for (code, message), runs in said.items():
        letters = " and ".join("A" if run == "before" else "B" for run in runs)
        line = Text(f"{letters}: {one_line(code)[:_LONGEST]}: ", style="yellow")
        lines.append(line.append(one_line(message)[:_LONGEST], style="default"))
    if diff.outcome in {"slower", "faster"}:
        lines.append(Text(_WITHIN_A_RUN, style="dim"))
    return lines


def _value(text: str) -> str:
    return one_line(text)[:_LONGEST]
