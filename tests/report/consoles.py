"""Make consoles that write to a string as to a pipe or a terminal of a given width."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

from gpudiag.report.console import ReportConsole
from gpudiag.report.terminal.report import render_analysis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from gpudiag.model.analysis import Analysis

Colour = Literal["standard", "256", "truecolor"]


class _Encoded(io.StringIO):
    """A string stream with an encoding."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO's is None
        return self._encoding


def console(width: int, *, colour: Colour | None = None, encoding: str = "utf-8") -> Console:
    """Return a console like that of `report_console`, but writing to a string."""
    return ReportConsole(
        file=_Encoded(encoding),
        width=width,
        color_system=colour,
        force_terminal=colour is not None,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )


def drawn(
    analysis: Analysis,
    width: int,
    *,
    colour: Colour | None = None,
    all_ranks: bool = False,
    full: bool = False,
    paths: Sequence[str] = (),
    command: str = "analyze",
) -> str:
    """Return the report as text."""
    target = console(width, colour=colour)
    render_analysis(analysis, target, all_ranks=all_ranks, full=full, paths=paths, command=command)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()
