"""Recorded steps of points: their analyses, and what a step without the profiler consists of.

Both are saved beside the traces, so that conclusions can be drawn again when those are gone.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from gpudiag import pipeline
from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.scaling import PARTS_FILE, PARTS_SCHEMA, Remark, StepParts
from gpudiag.run_files import ANALYSIS_FILE, TRACES_DIR, read_json, write_json
from gpudiag.scaling.store import recorded
from gpudiag.scaling.waterfall import pace_ms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpudiag.model.attribution import Attribution
    from gpudiag.model.scaling import ScalePoint
    from gpudiag.model.timeline import Timeline

#: Parts of a step that took as long as this close to the timed ones need no new replay.
_SAME = 0.001
#: Strategies whose gradients travel from device to device.
_ON_DEVICE = ("nccl", "fsdp", "independent", "hierarchical-copy", "one-device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Recorded steps of a point: where, what they show, and what a step without the profiler consists of."""

    directory: Path
    analysis: Analysis
    parts: StepParts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One recorded point to analyse. Plain enough to be sent to another process."""

    point: str
    directory: Path
    timed_ms: float
    staged: bool
    fed: bool


def analysed(output: Path, points: Iterable[ScalePoint]) -> tuple[dict[str, Recorded], list[Remark]]:
    """What was recorded of points, by id; analysed where that was not done yet, side by side; and what went wrong.

    Args:
        output: the benchmark's directory.
        points: its points.
    """
    work = [
        _Work(point=point.id, directory=directory, timed_ms=pace_ms(point), staged=_staged(point), fed=_fed(point))
        for point in points
        if point.status == "measured" and (directory := recorded(output, point.id)) is not None
    ]
    problems = _analyse([one for one in work if not _is_done(one)])
    found: dict[str, Recorded] = {}
    for one in work:
        try:
            found[one.point] = Recorded(
                directory=one.directory,
                analysis=read_json(one.directory / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA),
                parts=_saved_parts(one.directory),
            )
        except UnreadableInputError as error:
            problems.setdefault(one.directory, str(error))
    remarks = [
        Remark(code="not-analysed", message=f"{path.relative_to(output)}: {why}") for path, why in problems.items()
    ]
    return found, remarks


def _staged(point: ScalePoint) -> bool:
    """Do gradients travel through the host's memory?"""
    return not point.strategy.startswith(_ON_DEVICE)


def _fed(point: ScalePoint) -> bool:
    return point.data != "device"


def _is_done(work: _Work) -> bool:
    """Is there an analysis, and parts of steps as long as the timed ones? Without traces no more can be had."""
    if not (work.directory / TRACES_DIR).is_dir() or not any((work.directory / TRACES_DIR).iterdir()):
        return True
    parts = _saved_parts(work.directory)
    same = parts is not None and abs(parts.timed_ms - work.timed_ms) <= _SAME * work.timed_ms
    return same and (work.directory / ANALYSIS_FILE).is_file()


def _saved_parts(directory: Path) -> StepParts | None:
    with contextlib.suppress(UnreadableInputError):
        return read_json(directory / PARTS_FILE, StepParts, PARTS_SCHEMA)
    return None


def _analyse(work: list[_Work]) -> dict[Path, str]:
    """Analyse run directories beside each other; why, of those that could not be."""
    workers = min(len(work), os.cpu_count() or 1, 8)
    if workers < 2:
        outcomes = [_try(one) for one in work]
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            outcomes = list(pool.map(_try, work))
    return {one.directory: why for one, why in zip(work, outcomes, strict=True) if why is not None}


def _try(work: _Work) -> str | None:
    from gpudiag.scaling.parts import step_parts  # noqa: PLC0415  # the replay; only where something is analysed

    def keep(timeline: Timeline, attribution: Attribution) -> None:
        del attribution
        parts = step_parts(timeline, work.timed_ms, staged=work.staged, fed=work.fed)
        if parts is not None:
            write_json(work.directory / PARTS_FILE, parts)

    try:
        pipeline.analyze_run(work.directory, keep)
    except GpudiagError as error:
        return str(error)
    return None
