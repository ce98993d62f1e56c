"""`gpudiag analyze` behind its options; and lines of it so plain that no parser is needed to understand them.

Importing the parser takes a tenth of what an analysis takes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.model.analysis import Analysis

MAX_TRACE_GB = 4.0


class PlainAnalysis(NamedTuple):
    """What a plain line asks for."""

    paths: tuple[str, ...]
    as_json: bool


def plain_analysis(words: Sequence[str]) -> PlainAnalysis | None:
    """What `analyze PATH… [--json]` asks for; None for any other line, which is the parser's.

    >>> plain_analysis(["analyze", "traces/", "--json"])
    PlainAnalysis(paths=('traces/',), as_json=True)
    >>> plain_analysis(["analyze", "traces/", "--width", "80"])
    """
    if words[:1] != ["analyze"]:
        return None
    paths = tuple(word for word in words[1:] if not word.startswith("-"))
    options = {word for word in words[1:] if word.startswith("-")}
    return PlainAnalysis(paths, bool(options)) if paths and options <= {"--json"} else None


def analyze_traces(
    paths: Sequence[str], *, world_size: int | None = None, max_trace_gb: float = MAX_TRACE_GB
) -> Analysis:
    """Run the pipeline as the options ask."""
    from gpudiag.pipeline import analyze
    from gpudiag.readers import ReadLimits

    return analyze(paths, world_size=world_size, limits=ReadLimits(max_bytes=int(max_trace_gb * 1e9)))


def show_analysis(
    paths: Sequence[str],
    *,
    as_json: bool = False,
    world_size: int | None = None,
    all_ranks: bool = False,
    width: int | None = None,
    max_trace_gb: float = MAX_TRACE_GB,
) -> Analysis:
    """Analyse traces, and print the report or the JSON."""
    analysis = analyze_traces(paths, world_size=world_size, max_trace_gb=max_trace_gb)
    if as_json:
        from gpudiag.reporting.json_output import encode

        sys.stdout.write(encode(analysis).decode())
    else:
        from gpudiag.reporting.console import report_console
        from gpudiag.reporting.terminal import render_analysis

        render_analysis(analysis, report_console(width=width), all_ranks=all_ranks)
    sys.stdout.flush()
    return analysis
