"""Print results on standard output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec

    from gpudiag.model.analysis import Analysis


def write_as_json(result: msgspec.Struct) -> None:
    """Print a result as JSON."""
    from gpudiag.model.run_directory import encode_json

    sys.stdout.write(encode_json(result).decode())
    sys.stdout.flush()


def show_analysis(analysis: Analysis, *, as_json: bool, all_ranks: bool, width: int | None, full: bool = False) -> None:
    """Print an analysis as JSON or as a report; `full` adds evidence, kernels and modules."""
    if as_json:
        write_as_json(analysis)
        return
    from gpudiag.report.console import report_console
    from gpudiag.report.terminal.report import render_analysis

    render_analysis(analysis, report_console(width=width), all_ranks=all_ranks, full=full)
    sys.stdout.flush()
