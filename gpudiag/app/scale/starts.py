"""Which points are started again: every one, so that it is known what starts differ by, then doubtful baselines."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from gpudiag.analysis.scaling.measured import together
from gpudiag.analysis.scaling.trust import again
from gpudiag.app.scale.points import NEED_PEERS, Point
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.benchmarks.scaling import PointRecord, Remark


def started_again(
    request: ScaleRequest, wanted: Mapping[str, Point], known: Mapping[str, PointRecord], tried: Collection[str]
) -> list[Point]:
    """The points to measure once more, each as its next start; in the order in which they were wanted.

    Args:
        request: how many starts.
        wanted: the points of this call, by id.
        known: what is measured, by id.
        tried: directories of starts that this call has begun, which are not begun again, whatever became of them.
    """
    few = {record.id for record in again([known[key] for key in wanted if key in known], request.starts, NEED_PEERS)}
    found = [
        msgspec.structs.replace(point, start=max(1, len(known[key].starts)) + 1)
        for key, point in wanted.items()
        if key in few
    ]
    return [point for point in found if point.directory not in tried]


def with_start(
    point: Point, known: Mapping[str, PointRecord], record: PointRecord
) -> tuple[PointRecord, Remark | None]:
    """What is known of a point after another start, and what to say where that one failed."""
    before = known.get(point.record.id)
    if point.start == 1 or before is None:
        return record, None
    if record.status == "measured":
        return together(before, record), None
    why = f"{record.id}: start {point.start} failed: {record.error}; it rests on {point.start - 1}"
    return before, Remark(code="failed-start", message=why)
