"""What all reports in a terminal are laid out with: sections, plain tables, lines without trailing spaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

#: Spaces between two columns.
GAP = 2


def print_trimmed(console: Console, renderable: RenderableType) -> None:
    """Print on `console`, each line ending with its last visible character, so that it can be pasted and compared."""
    lines = console.render_lines(renderable, pad=False)
    console.print(Segments([part for line in lines for part in (*_trimmed(line), Segment.line())]), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def heading(words: str) -> Text:
    """The heading of a section."""
    return Text(words, style="bold underline")


def under_headings(sections: Iterable[tuple[str, RenderableType]]) -> list[RenderableType]:
    """Each section under its heading, an empty line before it."""
    return [part for words, section in sections for part in (Text(), heading(words), section)]


def plain_table(headings: Iterable[str] = (), *, left: Collection[str] = (), dim: bool = False, **how: Any) -> Table:
    """A table without lines: columns of figures but for those named in `left`, headings dim or not."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold dim" if dim else "bold")
    for words in headings:
        table.add_column(words, justify="left" if words in left else "right", **how)
    return table


def plain_grid(*columns: dict[str, Any], gap: int = GAP) -> Table:
    """A table without lines or headings; of each column how it is drawn, as `rich.table.Table.add_column` takes it."""
    table = Table.grid(padding=(0, gap, 0, 0))
    for how in columns:
        # A word longer than its line, such as a call to copy, goes on in the next.
        table.add_column(**({} if how.get("no_wrap") else {"overflow": "fold"}) | how)
    return table


def indented(words: str) -> Padding:
    """Text two columns in."""
    return Padding(Text(words), (0, 0, 0, 2), expand=False)


def and_more(lines: list[Text], left_out: int, of: str = "") -> list[Text]:
    """The lines, and how many are not among them where there are such: `and 3 more`."""
    return [*lines, Text(f"and {of}{left_out} more", style="dim")] if left_out > 0 else lines
