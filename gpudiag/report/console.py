"""Make terminal consoles, and the layout that all terminal reports share."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import IO, Any, NoReturn

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

#: Width of output that is not a terminal (log, file, pipe) if neither COLUMNS nor --width is given.
PIPE_WIDTH = 100
#: Spaces between two columns.
GAP = 2


class ReportConsole(Console):
    """Console that raises on a broken pipe, so that the command line's error handler chooses the exit code."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise the broken pipe."""
        raise BrokenPipeError


def report_console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """Return a console on `file` (default: standard output).

    rich selects the colors by the terminal, NO_COLOR and FORCE_COLOR. The width is `width`, or else COLUMNS, or else
    the terminal's width, or else `PIPE_WIDTH`. Markup, emoji codes and highlighting are off, because reports print text
    of untrusted files.
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
    """Print without spaces at the ends of lines, so that the output can be pasted and compared."""
    lines = console.render_lines(renderable, pad=False)
    console.print(Segments([segment for line in lines for segment in (*_trimmed(line), Segment.line())]), end="")


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Return the segments of a line without spaces at its end."""
    segments = list(line)
    while segments and not segments[-1].text.strip(" "):
        segments.pop()
    if segments:
        segments[-1] = Segment(segments[-1].text.rstrip(" "), segments[-1].style)
    return segments


def heading(words: str) -> Text:
    """Return the heading of a section."""
    return Text(words, style="bold underline")


def under_headings(sections: Iterable[tuple[str, RenderableType | None]]) -> list[RenderableType]:
    """Return an empty line, the heading and the section, for each section that is not None."""
    present = ((words, section) for words, section in sections if section is not None)
    return [item for words, section in present for item in (Text(), heading(words), section)]


def plain_table(
    headings: Iterable[str] = (), *, left: Collection[str] = (), dim: bool = False, **column_options: Any
) -> Table:
    """Return a table without border lines. Columns are right-aligned unless `left` has their heading."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold dim" if dim else "bold")
    for words in headings:
        table.add_column(words, justify="left" if words in left else "right", **column_options)
    return table


def plain_grid(*columns: dict[str, Any], gap: int = GAP) -> Table:
    """Return a table without headings and border lines. Each of `columns` has options of `Table.add_column`."""
    table = Table.grid(padding=(0, gap, 0, 0))
    for options in columns:
        # A word that is longer than its line, such as a function call, continues on the next line.
        table.add_column(**({} if options.get("no_wrap") else {"overflow": "fold"}) | options)
    return table


def drop_columns(columns: dict[str, list[str]], dispensable: Iterable[str], width: int) -> None:
    """Remove dispensable columns from `columns` (heading → cells), in order, until rows fit into `width` characters."""
    for name in dispensable:
        if sum(GAP + max(map(len, (heading, *cells))) for heading, cells in columns.items()) <= width:
            return
        columns.pop(name, None)


def indented(words: str) -> Padding:
    """Return text indented by two columns."""
    return Padding(Text(words), (0, 0, 0, 2), expand=False)


def and_more(lines: list[Text], omitted: int, prefix: str = "") -> list[Text]:
    """Append the number of omitted lines, if any: `and 3 more`, with `prefix` before the number."""
    return [*lines, Text(f"and {prefix}{omitted} more", style="dim")] if omitted > 0 else lines


def numbered(lines: Sequence[str]) -> RenderableType:
    """Return the lines with their numbers, or a single line without a number."""
    if len(lines) == 1:
        return Text(lines[0])
    table = plain_grid({"no_wrap": True, "justify": "right"}, {}, gap=1)
    for number, line in enumerate(lines, start=1):
        table.add_row(Text(f"{number}."), Text(line))
    return table


def commands_with_purposes(commands: Sequence[tuple[str, str]], width: int) -> RenderableType:
    """Return a line per (command or path, purpose). All purposes are omitted if a line would be wider than `width`."""
    longest = max(len(command) for command, _ in commands)
    fits = longest + 2 + max(len(purpose) for _, purpose in commands) <= width
    return Group(
        *(
            Text(command.ljust(longest + 2)).append(purpose, style="dim") if fits else Text(command, overflow="fold")
            for command, purpose in commands
        )
    )
