"""`gpudiag diff`: what made the difference between two runs."""

from __future__ import annotations

from gpudiag.analysis.comparison import compare
from gpudiag.app.analyze import analysis_of
from gpudiag.model.diff import Diff
from gpudiag.trace import ReadLimits


def diff(before: str, after: str, *, limits: ReadLimits | None = None) -> Diff:
    """What made the step times of two runs differ.

    Args:
        before, after: each a run directory, traces, or a saved analysis.
        limits: bounds on what is read.

    Raises:
        UnreadableInputError: one of them has no step to compare, or figures that cannot be.
    """
    return compare(*(analysis_of([path], limits=limits) for path in (before, after)))
