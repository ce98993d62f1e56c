"""Group points (trainings to measure) into launches, and choose the points to start again.

Points whose processes have the same environment share one launch. The launch has as many processes as its largest point
needs; while a smaller point trains, the remaining processes wait. Profiled windows come last, because the profiler's
library stays loaded and slows later steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from gpudiag.analysis.scaling.measured import together
from gpudiag.analysis.scaling.speedup import again
from gpudiag.app.scale.points import NEED_PEERS, Point
from gpudiag.app.scale.store import Store
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.benchmarks.scaling import PointRecord, Remark
from gpudiag.model.benchmarks.sweep import SweepEntry, SweepPlan

#: Largest share of a launch's time that profiled windows may take. A window takes about as long as timing a point.
_MOST_FOR_PROFILES = 0.3
#: Seconds of unprofiled steps before a profiled window. Few are enough, because the point was timed before.
_PROFILED_SECONDS = 0.5


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Points that one set of processes measures: first the timed points in their order, then the profiled points."""

    timed: tuple[Point, ...]
    profiled: tuple[Point, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """All points, in the order of the plan's entries."""
        return (*self.timed, *self.profiled)

    @property
    def p2p(self) -> bool:
        """True if the processes have peer access."""
        return all(point.job.p2p for point in self.points)

    @property
    def processes(self) -> int:
        """Number of processes = 1 + (highest device index of all points)."""
        return 1 + max(point.record.device_indices[-1] for point in self.points)


def next_launch(timed: Sequence[Point], profiled: Sequence[Point]) -> Launch:
    """Return the launch that measures the most important point, and all points with the same setting of peer access.

    Processes read this setting once, when they start.

    Args:
        timed: points that remain to be timed, most important first; may be empty if points remain to be profiled.
        profiled: points that remain to be profiled.
    """
    p2p = (*timed, *profiled)[0].job.p2p
    return Launch(
        timed=tuple(point for point in timed if point.job.p2p == p2p),
        profiled=tuple(point for point in profiled if point.job.p2p == p2p),
    )


def plan(launch: Launch, request: ScaleRequest, left_s: float | None) -> SweepPlan:
    """Return the plan of a launch. The launch begins no entry after `left_s` seconds; None for no limit."""
    timed_s = left_s  # less if profiled points follow, so that they get their share of the time
    if left_s is not None and launch.profiled:
        share = len(launch.profiled) / len(launch.points)
        timed_s = left_s * (1 - min(_MOST_FOR_PROFILES, share))
    return SweepPlan(
        entries=(
            *(
                SweepEntry(
                    directory=point.directory,
                    job=point.job,
                    ranks=point.record.device_indices,
                    accuracy=request.accuracy,
                    seconds=request.seconds,
                    warmup_s=request.warmup_s,
                    not_after_s=timed_s,
                )
                for point in launch.timed
            ),
            *(
                SweepEntry(
                    directory=Store.relative(point.record.id, profile=True),
                    job=point.job,
                    ranks=point.record.device_indices,
                    accuracy=request.accuracy,
                    seconds=_PROFILED_SECONDS,
                    warmup_s=request.warmup_s,
                    recorded=True,
                    not_after_s=left_s,
                )
                for point in launch.profiled
            ),
        )
    )


def started_again(
    request: ScaleRequest, wanted: Mapping[str, Point], known: Mapping[str, PointRecord], tried: Collection[str]
) -> list[Point]:
    """Return the points whose processes start once more: points with too few starts.

    If there are none, return the points on one device that others are compared with (baselines), but whose rates vary
    too much or are implausible.

    Args:
        request: contains the number of starts.
        wanted: the points of this call by id, in order.
        known: the records of points by id.
        tried: directories of starts that this call has begun. These starts are not repeated, even if they failed.
    """
    records = [known[point_id] for point_id in wanted if point_id in known]
    again_ids = {record.id for record in again(records, request.starts, NEED_PEERS)}
    points = [
        # A record without list of starts has one start.
        msgspec.structs.replace(point, start=max(1, len(known[point_id].starts)) + 1)
        for point_id, point in wanted.items()
        if point_id in again_ids
    ]
    return [point for point in points if point.directory not in tried]


def with_start(
    point: Point, known: Mapping[str, PointRecord], record: PointRecord
) -> tuple[PointRecord, Remark | None]:
    """Merge the record of another start into the known record. Return the result, and a remark if the start failed.

    The record of the first start is returned unchanged.
    """
    before = known.get(point.record.id)
    if point.start == 1 or before is None:
        return record, None
    if record.status == "measured":
        return together(before, record), None
    message = f"{record.id}: start {point.start} failed: {record.error}; the result has {point.start - 1} starts"
    return before, Remark(code="failed-start", message=message)
