"""Print the documentation of a finding or a warning."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.explanation import Explanation, ExplanationList
from gpudiag.report.console import plain_grid, print_trimmed, under_headings

#: Longest line of text, so that paragraphs stay readable in wide terminals.
_WIDEST = 100


def render_explanation(explanation: Explanation, console: Console) -> None:
    """Print meaning, examples and advice."""
    for_warning = explanation.kind == "warning"
    advice = "".join(line for entry in explanation.advice for line in entry.advice)
    note = "Ranks and figures in the advice are those of examples." if re.search(r"\d", advice) else ""
    sections = [
        *(
            (f"What to do if the cause is {entry.cause}" if entry.cause else "What to do", _bullets(entry.advice))
            for entry in explanation.advice
        ),
        ("When it fires", _bullets(explanation.fires)),
        ("When it is silent", _bullets(explanation.silent)),
        ("When it cannot tell", _bullets(explanation.cannot_tell)),
    ]
    head = [
        Text(explanation.code, style="bold").append(" · warning about the recording" if for_warning else ""),
        Text(explanation.title),
        *(item for paragraph in (*explanation.paragraphs, note) if paragraph for item in (Text(), Text(paragraph))),
    ]
    _print(Group(*head, *under_headings(sections)), console)


def render_explanations(codes: ExplanationList, console: Console) -> None:
    """Print all codes with their titles."""
    longest = max(map(len, (*codes.findings, *codes.warnings)))
    sections = [
        ("Findings", _titles(codes.findings, longest)),
        ("Warnings about the recording", _titles(codes.warnings, longest)),
    ]
    _print(Group(*under_headings(sections)[1:]), console)  # without the empty line before the first heading


def _titles(titles: dict[str, str], longest: int) -> RenderableType:
    table = plain_grid({"no_wrap": True, "min_width": longest}, {}, gap=2)
    for code, title in titles.items():
        table.add_row(Text(code), Text(title))
    return table


def _bullets(lines: Sequence[str]) -> RenderableType | None:
    """Return a list; None if it is empty."""
    table = plain_grid({"no_wrap": True}, {}, gap=1)
    for line in lines:
        table.add_row(Text("-"), Text(line))
    return table if lines else None


def _print(content: RenderableType, console: Console) -> None:
    console.width = min(console.width, _WIDEST)
    print_trimmed(console, content)
