"""Recorded steps of points: their analyses, and what a step without the profiler consists of.

Both are saved beside the traces, so that conclusions can be drawn again when those are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpudiag.analysis.scaling.parts import step_parts
from gpudiag.analysis.scaling.waterfall import pace_ms
from gpudiag.app.analyze import analyze_run_traces, side_by_side
from gpudiag.app.scale.store import recorded_directory
from gpudiag.errors import GpudiagError, UnreadableInputError
from gpudiag.model.analysis import ANALYSIS_SCHEMA, Analysis
from gpudiag.model.benchmarks.scaling import (
    NO_P2P,
    PARTS_FILE,
    PARTS_SCHEMA,
    PointRecord,
    RecordedSteps,
    Remark,
    StepParts,
)
from gpudiag.model.run_directory import ANALYSIS_FILE, TRACES_DIR, read_json, readable_json, write_json
from gpudiag.training.strategies.registry import strategies

#: Parts of a step that took as long as this close to the timed ones need no new replay.
_SAME = 0.001


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded point to analyse. Plain enough to be sent to another process."""

    point: PointRecord
    directory: Path


def analysed(output: Path, points: Iterable[PointRecord]) -> tuple[dict[str, RecordedSteps], list[Remark]]:
    """What was recorded of points, by id; analysed where that was not done yet, side by side; and what went wrong.

    Args:
        output: the benchmark's directory.
        points: its points.
    """
    work = [
        _Work(point=point, directory=directory)
        for point in points
        if point.status == "measured" and (directory := recorded_directory(output, point.id)) is not None
    ]
    undone = [item for item in work if not _is_done(item)]
    outcomes = side_by_side(_try, undone)
    problems = {item.directory: why for item, why in zip(undone, outcomes, strict=True) if why is not None}
    recorded: dict[str, RecordedSteps] = {}
    for item in work:
        try:
            read_json(item.directory / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
        except UnreadableInputError as error:
            problems.setdefault(item.directory, str(error))
            continue
        recorded[item.point.id] = RecordedSteps(
            directory=str(item.directory.relative_to(output)), parts=_saved_parts(item.directory)
        )
    remarks = [
        Remark(code="not-analysed", message=f"{path.relative_to(output)}: {why}") for path, why in problems.items()
    ]
    return recorded, remarks


def _is_done(work: _Work) -> bool:
    """Is there an analysis, and parts of steps as long as the timed ones? Without traces no more can be had."""
    if not (work.directory / TRACES_DIR).is_dir() or not any((work.directory / TRACES_DIR).iterdir()):
        return True
    parts, timed_ms = _saved_parts(work.directory), pace_ms(work.point)
    same = parts is not None and abs(parts.timed_ms - timed_ms) <= _SAME * timed_ms
    return same and (work.directory / ANALYSIS_FILE).is_file()


def _saved_parts(directory: Path) -> StepParts | None:
    return readable_json(directory / PARTS_FILE, StepParts, PARTS_SCHEMA)


def _try(work: _Work) -> str | None:
    """Analyse a recorded point and save the parts of its step; return why that failed."""
    strategy = strategies(work.point.framework).get(work.point.strategy.removesuffix(NO_P2P))
    staged = strategy is None or strategy.through_host  # an unknown strategy may be
    try:
        timeline = analyze_run_traces(work.directory).timeline
        parts = step_parts(timeline, pace_ms(work.point), staged=staged, fed=work.point.data != "device")
        if parts is not None:
            write_json(work.directory / PARTS_FILE, parts)
    except GpudiagError as error:
        return str(error)
    return None
