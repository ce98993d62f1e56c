"""Wait for the traces of all ranks of a training that uses `gpudiag.trace_handler`, and print the verdict.

The handler starts this module in a separate process. The module is not a command for users.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpudiag.app.analyze import load_analysis
from gpudiag.errors import GpudiagError
from gpudiag.model.analysis import Analysis
from gpudiag.report import figures
from gpudiag.report.verdict import verdict_of
from gpudiag.training.session.record import trace_name

_PAUSE_S = 0.2


def main() -> None:
    """Print the verdict. The command line has run directory, number of ranks, seconds to wait and start of the job."""
    run_dir, ranks, wait_s, started_s = sys.argv[1:]
    try:
        lines = verdict_lines(Path(run_dir), int(ranks), wait_s=float(wait_s), started_s=float(started_s))
    except KeyboardInterrupt:
        return
    sys.stderr.write("".join(f"gpudiag: {line}\n" for line in lines))


def verdict_lines(run_dir: Path, ranks: int, *, wait_s: float, started_s: float) -> list[str]:
    """Wait for the traces of all ranks, and return the lines to print; [] if the training process ends before.

    Args:
        run_dir: the run directory.
        ranks: number of ranks of the job.
        wait_s: maximum number of seconds to wait.
        started_s: time since the epoch at which the job started. Older traces belong to earlier jobs.
    """
    training = os.getppid()
    until_s = time.monotonic() + wait_s
    missing = list(range(ranks))
    while missing := [rank for rank in missing if not _is_there(run_dir, rank, started_s)]:
        if os.getppid() != training:  # the training process has ended
            return []
        if time.monotonic() >= until_s:
            break
        time.sleep(_PAUSE_S)
    command = f"gpudiag analyze {shlex.quote(str(run_dir))} --full"
    lines = [_missing_line(run_dir, ranks, missing, wait_s)] if missing else []
    present = [str(run_dir / trace_name(rank)) for rank in sorted({*range(ranks)} - {*missing})]
    try:
        # A directory may also have traces of earlier jobs, which the missing ranks did not replace.
        analysis = load_analysis(present if missing else [str(run_dir)], world_size=ranks)
    except GpudiagError as error:
        return [*lines, f"no verdict: {error}", error.hint]
    return [*lines, *_verdict(analysis), f"full report: {command}"]


def _is_there(run_dir: Path, rank: int, started_s: float) -> bool:
    """Return whether a rank has a trace of this job."""
    try:
        return (run_dir / trace_name(rank)).stat().st_mtime >= started_s
    except OSError:
        return False


def _missing_line(run_dir: Path, ranks: int, missing: Sequence[int], wait_s: float) -> str:
    words = figures.ranks(missing)
    return (
        f"{words} of {ranks} wrote no trace into {run_dir} within {wait_s:g} s, so the verdict is without "
        "them. Every rank must use the handler, with a directory that all nodes share."
    )


def _verdict(analysis: Analysis) -> list[str]:
    """Return one or two lines with the step time, the verdict and the gain."""
    verdict = verdict_of(analysis)
    step_ms = figures.milliseconds(analysis.steps.mean_ms)
    severity = f"{verdict.severity.upper()}: " if verdict.severity else ""
    unit = analysis.steps.unit.replace("-", " ")
    lines = [f"{step_ms} ms per {unit} while profiling. {severity}{verdict.title}"]
    return [*lines, f"gain: {verdict.gain}"] if verdict.gain else lines
