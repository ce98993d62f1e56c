"""Analyse the recorded steps of points, and break down an unprofiled step into parts.

Both results are saved beside the traces, so that conclusions can be drawn again after the traces are deleted.
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

#: Saved parts are still valid if the unprofiled step time has changed by at most this share since they were made.
_SAME = 0.001


class _RecordedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded point to analyse, possibly in another process."""

    point: PointRecord
    directory: Path


def analysed(output: Path, points: Iterable[PointRecord]) -> tuple[dict[str, RecordedSteps], list[Remark]]:
    """Analyse in parallel the recorded points that are not analysed yet.

    Args:
        output: the benchmark's directory.
        points: the points of the benchmark.

    Returns:
        The recorded steps by point id, and remarks on failures.
    """
    recorded_points = [
        _RecordedPoint(point=point, directory=directory)
        for point in points
        if point.status == "measured" and (directory := recorded_directory(output, point.id)) is not None
    ]
    new = [recorded for recorded in recorded_points if not _is_analysed(recorded)]
    errors = side_by_side(_analyse, new)
    problems = {recorded.directory: error for recorded, error in zip(new, errors, strict=True) if error is not None}
    steps: dict[str, RecordedSteps] = {}
    for recorded in recorded_points:
        try:
            read_json(recorded.directory / ANALYSIS_FILE, Analysis, ANALYSIS_SCHEMA)
        except UnreadableInputError as error:
            problems.setdefault(recorded.directory, str(error))
            continue
        steps[recorded.point.id] = RecordedSteps(
            directory=str(recorded.directory.relative_to(output)), parts=_saved_parts(recorded.directory)
        )
    remarks = [
        Remark(code="not-analysed", message=f"{path.relative_to(output)}: {error}") for path, error in problems.items()
    ]
    return steps, remarks


def _is_analysed(recorded: _RecordedPoint) -> bool:
    """Return whether the analysis and the parts are saved, or cannot be made because there are no traces."""
    traces = recorded.directory / TRACES_DIR
    if not traces.is_dir() or not any(traces.iterdir()):
        return True
    parts, timed_ms = _saved_parts(recorded.directory), pace_ms(recorded.point)
    same = parts is not None and abs(parts.timed_ms - timed_ms) <= _SAME * timed_ms
    return same and (recorded.directory / ANALYSIS_FILE).is_file()


def _saved_parts(directory: Path) -> StepParts | None:
    return readable_json(directory / PARTS_FILE, StepParts, PARTS_SCHEMA)


def _analyse(recorded: _RecordedPoint) -> str | None:
    """Save analysis and parts; return the error if that fails."""
    point = recorded.point
    strategy = strategies(point.framework).get(point.strategy.removesuffix(NO_P2P))
    staged = strategy is None or strategy.through_host  # communicates through the host, as an unknown one may
    try:
        timeline = analyze_run_traces(recorded.directory).timeline
        # `fed`: batches come from outside of the device.
        parts = step_parts(timeline, pace_ms(point), staged=staged, fed=point.data != "device")
        if parts is not None:
            write_json(recorded.directory / PARTS_FILE, parts)
    except GpudiagError as error:
        return str(error)
    return None
