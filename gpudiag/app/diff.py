"""`gpudiag diff`: attribute the difference of two runs' step times."""

from __future__ import annotations

from gpudiag.analysis.comparison import compare
from gpudiag.app.analyze import load_analysis
from gpudiag.model.diff import Diff
from gpudiag.trace import ReadLimits


def diff(before: str, after: str, *, limits: ReadLimits | None = None) -> Diff:
    """Attribute the difference of two runs, each a run directory, traces, or a saved analysis."""
    return compare(*(load_analysis([path], limits=limits) for path in (before, after)))
