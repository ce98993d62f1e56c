"""Draw the short report as HTML for the output of a notebook's cell."""

from __future__ import annotations

import io

from gpudiag.model.analysis import Analysis
from gpudiag.report.console import ReportConsole
from gpudiag.report.terminal.report import render_analysis

_WIDTH = 100
_FORMAT = '<pre style="line-height: 1.2; white-space: pre; overflow-x: auto">{code}</pre>'


class NotebookConsole(ReportConsole):
    """Console whose output becomes HTML. Fills differ also without color, because some viewers drop styles."""

    distinct_glyphs = True


def analysis_html(analysis: Analysis) -> str:
    """Return the short report in one HTML element, with inline styles and escaped text."""
    console = NotebookConsole(
        file=io.StringIO(),
        width=_WIDTH,
        record=True,
        # HTML has exact colors anyway. rich keeps the escape sequences of a style, which other consoles then print too.
        color_system="256",
        force_terminal=True,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    render_analysis(analysis, console, paths=analysis.source.paths)
    return console.export_html(inline_styles=True, code_format=_FORMAT)
