"""Printing without the spaces with which tables fill their lines, so that a report can be pasted and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment, Segments

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def print_trimmed(console: Console, renderable: RenderableType) -> None:
    """Print on `console`, each line ending with its last visible character."""
    lines = console.render_lines(renderable, pad=False)
    console.print(Segments([part for line in lines for part in (*_trimmed(line), Segment.line())]), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept
