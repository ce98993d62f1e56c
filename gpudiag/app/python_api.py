"""The functions of `import gpudiag` for programs and notebooks."""

from __future__ import annotations

import os
from pathlib import Path

from gpudiag.analysis.comparison import compare as compare_analyses
from gpudiag.app.analyze import load_analysis
from gpudiag.machine import facts_file
from gpudiag.model.analysis import Analysis
from gpudiag.model.diff import Diff
from gpudiag.model.facts import Facts
from gpudiag.model.run_directory import FACTS_FILE
from gpudiag.trace import ReadLimits

AnyPath = str | os.PathLike[str]


def analyze(*paths: AnyPath, world_size: int | None = None, max_trace_gb: float = 4.0) -> Analysis:
    """Analyse where each step's time went, and return the content of `gpudiag analyze --json` as an object.

        analysis = gpudiag.analyze("run-dir")
        analysis.findings[0].title
        analysis.frames().buckets.pivot(index="rank", columns="bucket", values="ms")

    The function imports no framework.

    Args:
        paths: a run directory, traces, directories or patterns of traces; or one saved `analysis.json`.
        world_size: number of ranks, if the traces do not contain it.
        max_trace_gb: refuse a trace that unpacks to more than this (1 GB is 1e9 bytes).

    Raises:
        UsageError: no path was given.
        UnreadableInputError: a file is missing, broken, too large or no trace, or has nothing to analyse.
    """
    limits = ReadLimits(max_bytes=int(max_trace_gb * 1e9))
    return load_analysis([os.fspath(path) for path in paths], world_size=world_size, limits=limits)


def compare(before: Analysis | AnyPath, after: Analysis | AnyPath) -> Diff:
    """Attribute the difference of two runs' step times; return the content of `gpudiag diff --json` as an object.

    Args:
        before, after: an analysis, or a path as for `gpudiag.analyze`.

    Raises:
        UnreadableInputError: a run cannot be read, or has no step to compare.
    """
    analyses = [run if isinstance(run, Analysis) else analyze(run) for run in (before, after)]
    return compare_analyses(*analyses)


def load_facts(path: AnyPath) -> Facts:
    """Read a machine's facts from a file of `gpudiag topology --save` or `bandwidth`, or from a run directory.

    Raises:
        UnreadableInputError: there are no readable facts.
    """
    file = Path(path)
    return facts_file.load_facts(file / FACTS_FILE if file.is_dir() else file)
