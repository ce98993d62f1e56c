"""Which points share a set of processes, and in which order each set goes through its own.

Points whose processes have the same environment share one launch: it has as many processes as its largest point, and
the others wait while a smaller one trains. Profiled windows come last, because the profiler leaves its library loaded,
which slows what is timed after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpudiag.model.sweep import SweepEntry, SweepPlan
from gpudiag.scaling.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.scaling.asked import Asked
    from gpudiag.scaling.points import Case

#: Share of a launch's time that is kept for profiled windows, where there are any: each takes about as long as a point.
_MOST_FOR_PROFILES = 0.3
#: Timed steps before a profiled window: they are measured elsewhere.
_PROFILED_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One set of processes: its timed points in order, then its profiled ones."""

    timed: tuple[Case, ...]
    profiled: tuple[Case, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """In the order of the plan's entries."""
        return (*self.timed, *self.profiled)

    @property
    def p2p(self) -> bool:
        """Whether its processes have peer access."""
        return all(case.job.p2p for case in self.cases)

    @property
    def processes(self) -> int:
        """As many as the highest device that takes part asks for."""
        return 1 + max(case.point.device_indices[-1] for case in self.cases)


def next_launch(timed: Sequence[Case], profiled: Sequence[Case]) -> Launch:
    """The launch that measures the point most worth, and whatever can go with it.

    Args:
        timed: points still to be timed, most worth first; may be empty when some are to be profiled.
        profiled: points still to be profiled.
    """
    key = _environment((*timed, *profiled)[0])
    # One device has no peers: a baseline needs no launch without peer access of its own.
    return Launch(
        timed=tuple(case for case in timed if _environment(case) == key),
        profiled=tuple(case for case in profiled if _environment(case) == key),
    )


def _environment(case: Case) -> tuple[object, ...]:
    """What processes read once, when they start."""
    job = case.job
    return (job.p2p, getattr(job, "nccl_algo", None))


def plan(launch: Launch, asked: Asked, left_s: float | None) -> SweepPlan:
    """What the launch's processes are told.

    Args:
        launch: its points.
        asked: how well they are to be known.
        left_s: begin nothing after this many seconds; None for no limit.
    """
    timed_s = left_s
    if left_s is not None and launch.profiled:
        share = len(launch.profiled) / len(launch.cases)
        timed_s = left_s * (1 - min(_MOST_FOR_PROFILES, share))
    return SweepPlan(
        entries=(
            *(
                SweepEntry(
                    directory=Store.relative(case.point.id),
                    job=case.job,
                    ranks=case.point.device_indices,
                    accuracy=asked.accuracy,
                    seconds=asked.seconds,
                    warmup_s=asked.warmup_s,
                    not_after_s=timed_s,
                )
                for case in launch.timed
            ),
            *(
                SweepEntry(
                    directory=Store.relative(case.point.id, profile=True),
                    job=case.job,
                    ranks=case.point.device_indices,
                    accuracy=asked.accuracy,
                    seconds=_PROFILED_SECONDS,
                    warmup_s=asked.warmup_s,
                    recorded=True,
                    not_after_s=left_s,
                )
                for case in launch.profiled
            ),
        )
    )
