"""Terminal consoles, and the layout that all terminal reports share."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from typing import IO, Any, NoReturn

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

#: Columns of output that is not a terminal (log, file, pipe) if neither COLUMNS nor --width is given.
PIPE_WIDTH = 100
#: Spaces between two columns.
GAP = 2


class ReportConsole(Console):
    """Console that leaves a broken pipe to the command line's error handler instead of exiting with code 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the broken pipe."""
        raise BrokenPipeError


def report_console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Return a console on `file` (default: standard output).

    Colors follow the terminal, NO_COLOR and FORCE_COLOR, which rich reads itself. The width is `width`, else COLUMNS,
    else the terminal's, else `PIPE_WIDTH`. Markup, emoji codes and highlighting are off because reports print text of
    untrusted files.
    """
    stream = sys.stdout if file is None else file
    if width is None and not os.environ.get("COLUMNS", "").isdigit() and not _is_terminal(stream):
        width = PIPE_WIDTH
    return ReportConsole(file=stream, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False)


def _is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def print_trimmed(console: Console, renderable: RenderableType) -> None:
    """Print without trailing spaces, so that output can be pasted and compared."""
    lines = console.render_lines(renderable, pad=False)
    console.print(Segments([segment for line in lines for segment in (*_trimmed(line), Segment.line())]), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def heading(words: str) -> Text:
    """Return the heading of a section."""
    return Text(words, style="bold underline")


def under_headings(sections: Iterable[tuple[str, RenderableType | None]]) -> list[RenderableType]:
    """Return each section that is not None below its heading, after an empty line."""
    present = ((words, section) for words, section in sections if section is not None)
    return [item for words, section in present for item in (Text(), heading(words), section)]


def plain_table(
    headings: Iterable[str] = (), *, left: Collection[str] = (), dim: bool = False, **column_options: Any
) -> Table:
    """Return a table without lines; columns not named in `left` are right-aligned."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold dim" if dim else "bold")
    for words in headings:
        table.add_column(words, justify="left" if words in left else "right", **column_options)
    return table


def plain_grid(*columns: dict[str, Any], gap: int = GAP) -> Table:
    """Return a table without lines or headings; each column has the options of `rich.table.Table.add_column`."""
    table = Table.grid(padding=(0, gap, 0, 0))
    for options in columns:
        # A word longer than its line, such as a call to copy, continues on the next line.
        table.add_column(**({} if options.get("no_wrap") else {"overflow": "fold"}) | options)
    return table


def drop_columns(columns: dict[str, list[str]], dispensable: Iterable[str], width: int) -> None:
    """Remove dispensable columns, in this order, until headings and cells fit."""
    for name in dispensable:
        if sum(GAP + max(map(len, (heading, *cells))) for heading, cells in columns.items()) <= width:
            return
        columns.pop(name, None)


def indented(words: str) -> Padding:
    """Return text indented by two columns."""
    return Padding(Text(words), (0, 0, 0, 2), expand=False)


def and_more(lines: list[Text], omitted: int, prefix: str = "") -> list[Text]:
    """Append how many lines were omitted: `and 3 more`."""
    return [*lines, Text(f"and {prefix}{omitted} more", style="dim")] if omitted > 0 else lines
