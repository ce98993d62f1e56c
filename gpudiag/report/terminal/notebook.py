"""Draw the short report as HTML for the output of a notebook's cell."""

from __future__ import annotations

import io

from rich.terminal_theme import TerminalTheme

from gpudiag.model.analysis import Analysis
from gpudiag.report.console import ReportConsole
from gpudiag.report.terminal.report import render_analysis

_WIDTH = 100
#: Notebooks are light or dark, so the report has a background of its own. Every text color has a contrast of 4.5.
_THEME = TerminalTheme(
    (17, 17, 17),
    (238, 238, 238),
    [(0, 0, 0), (255, 123, 114), (86, 211, 137), (227, 179, 65), (121, 174, 255), (221, 147, 189), (124, 200, 210)],
    None,
)  # fmt: skip
#: `tabindex` lets keys scroll a report that is wider than the cell.
_FORMAT = (
    '<pre tabindex="0" style="color: {foreground}; background-color: {background}; padding: 0.8em; line-height: 1.2; '
    'white-space: pre; overflow-x: auto">{code}</pre>'
)


class NotebookConsole(ReportConsole):
    """Console whose output becomes HTML. Fills differ without color too, because some viewers drop styles."""

    distinct_glyphs = True


def analysis_html(analysis: Analysis) -> str:
    """Return the short report in one HTML element, with inline styles and escaped text."""
    console = NotebookConsole(
        file=io.StringIO(),
        width=_WIDTH,
        record=True,
        # HTML has exact colors in any case. Other consoles may reuse the escape sequences, because rich caches them.
        color_system="256",
        force_terminal=True,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    render_analysis(analysis, console, paths=analysis.source.paths)
    return console.export_html(theme=_THEME, inline_styles=True, code_format=_FORMAT)
