"""Consoles: how wide, in colour or not, and what happens when the reader leaves."""

from __future__ import annotations

import os
import sys
from typing import IO, NoReturn

from rich.console import Console

#: Columns where there is neither a terminal nor COLUMNS nor --width to tell: a log, a file, a pipe.
PIPE_WIDTH = 100


class ReportConsole(Console):
    """A console that leaves a broken pipe to the command line's error funnel instead of exiting with code 1."""

    def on_broken_pipe(self) -> NoReturn:
        """Hand the broken pipe up."""
        raise BrokenPipeError


def report_console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """A console on `file` (standard output when left out).

    Colours follow the terminal, NO_COLOR and FORCE_COLOR, which rich reads itself. The width is `width`, else COLUMNS,
    else the terminal's, else `PIPE_WIDTH`. Markup, emoji codes and highlighting are off: nothing that a report prints
    is an instruction.
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
