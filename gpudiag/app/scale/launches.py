"""Which points share a set of processes, and in which order each set goes through its own.

Points whose processes have the same environment share one launch: it has as many processes as its largest point, and
the others wait while a smaller one trains. Profiled windows come last, because the profiler leaves its library loaded,
which slows what is timed after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.app.scale.points import Point
from gpudiag.app.scale.store import Store
from gpudiag.model.benchmarks.scale_request import ScaleRequest
from gpudiag.model.benchmarks.sweep import SweepEntry, SweepPlan

#: Share of a launch's time that is kept for profiled windows, where there are any: each takes about as long as a point.
_MOST_FOR_PROFILES = 0.3
#: Timed steps before a profiled window: they are measured elsewhere.
_PROFILED_SECONDS = 0.5


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One set of processes: its timed points in order, then its profiled ones."""

    timed: tuple[Point, ...]
    profiled: tuple[Point, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """In the order of the plan's entries."""
        return (*self.timed, *self.profiled)

    @property
    def p2p(self) -> bool:
        """Whether its processes have peer access."""
        return all(point.job.p2p for point in self.points)

    @property
    def processes(self) -> int:
        """As many as the highest device that takes part asks for."""
        return 1 + max(point.record.device_indices[-1] for point in self.points)


def next_launch(timed: Sequence[Point], profiled: Sequence[Point]) -> Launch:
    """The launch that measures the most important point, and whatever can go with it.

    Args:
        timed: points still to be timed, most important first; may be empty when some are to be profiled.
        profiled: points still to be profiled.
    """
    key = _environment((*timed, *profiled)[0])
    # One device has no peers: a baseline needs no launch without peer access of its own.
    return Launch(
        timed=tuple(point for point in timed if _environment(point) == key),
        profiled=tuple(point for point in profiled if _environment(point) == key),
    )


def _environment(point: Point) -> bool:
    """What processes read once, when they start: whether they have peer access."""
    return point.job.p2p


def plan(launch: Launch, request: ScaleRequest, left_s: float | None) -> SweepPlan:
    """What the launch's processes are told.

    Args:
        launch: its points.
        request: how well they are to be known.
        left_s: begin nothing after this many seconds; None for no limit.
    """
    timed_s = left_s
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
