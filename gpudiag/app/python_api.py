"""What `import gpudiag` offers to programs and notebooks that look at recordings."""

from __future__ import annotations

import os
from pathlib import Path

from gpudiag.analysis.comparison import compare as compare_analyses
from gpudiag.app.analyze import analysis_of
from gpudiag.machine import facts_file
from gpudiag.model.analysis import Analysis
from gpudiag.model.diff import Diff
from gpudiag.model.facts import Facts
from gpudiag.model.run_directory import FACTS_FILE
from gpudiag.trace import ReadLimits

Place = str | os.PathLike[str]


def analyze(*paths: Place, world_size: int | None = None, max_trace_gb: float = 4.0) -> Analysis:
    """Say where each step's time went: what `gpudiag analyze --json` prints, as an object.

        analysis = gpudiag.analyze("run-dir")
        analysis.findings[0].title
        analysis.frames().buckets.pivot(index="rank", columns="bucket", values="ms")

    Imports no framework.

    Args:
        paths: a run directory, traces, directories or patterns of traces; or one saved `analysis.json`.
        world_size: ranks in the job, where the traces do not say.
        max_trace_gb: refuse a trace that unpacks to more than this (1 GB is 1e9 bytes).

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a file is missing, broken, too large or no trace, or nothing in it can be analysed.
    """
    limits = ReadLimits(max_bytes=int(max_trace_gb * 1e9))
    return analysis_of([os.fspath(path) for path in paths], world_size=world_size, limits=limits)


def compare(before: Analysis | Place, after: Analysis | Place) -> Diff:
    """What made the step times of two runs differ: what `gpudiag diff --json` prints, as an object.

    Args:
        before, after: an analysis, or what `gpudiag.analyze` takes one of.

    Raises:
        UnreadableInputError: one of them cannot be read, or has no step to compare.
    """
    old, new = (one if isinstance(one, Analysis) else analyze(one) for one in (before, after))
    return compare_analyses(old, new)


def load_facts(path: Place) -> Facts:
    """What a machine has and carries, from a file of `gpudiag topology --save` or `bandwidth`, or a run directory.

    Raises:
        UnreadableInputError: there are no facts, or none that can be read.
    """
    place = Path(path)
    return facts_file.load_facts(place / FACTS_FILE if place.is_dir() else place)
