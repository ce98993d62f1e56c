"""Case: the facts that every rule looks at, computed once and passed on frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.diagnosis.replay.what_if import WhatIf
from gpudiag.intervals import length
from gpudiag.model.analysis import BUCKETS
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from gpudiag.model.attribution import Attribution
    from gpudiag.model.facts import Facts
    from gpudiag.model.run import RunRecord
    from gpudiag.model.timeline import Lane, Timeline


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job: what happened, and what is known of the machine and the run."""

    timeline: Timeline
    attribution: Attribution
    facts: Facts | None = None
    run: RunRecord | None = None

    @cached_property
    def what_if(self) -> WhatIf | None:
        """The replay, or None where the traces hold nothing that can be replayed."""
        unprofiled = None
        if self.run is not None:
            means = [rank.unprofiled.mean_ms for rank in self.run.ranks if rank.unprofiled is not None]
            unprofiled = max(means) if means else None
        return WhatIf.of(self.timeline, unprofiled_ms=unprofiled)

    @cached_property
    def step_ms(self) -> float:
        """Mean step time over all lanes as profiled, in milliseconds."""
        means = [float(lane.step_ns.mean()) for lane in self.attribution.lanes if len(lane.step_ns)]
        return milliseconds(float(np.mean(means))) if means else 0.0

    @cached_property
    def steps(self) -> int:
        """How many steps were analysed."""
        return min((len(lane.window_steps) for lane in self.timeline.lanes), default=0)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes."""
        return self.timeline.lanes

    def exposed_ms(self, *buckets: str) -> dict[int, float]:
        """Exposed time in these buckets per step, in milliseconds, by rank; over a rank's devices the most."""
        columns = [BUCKETS.index(bucket) for bucket in buckets]
        exposed: dict[int, float] = {}
        for lane in self.attribution.lanes:
            if len(lane.buckets_ns):
                value = milliseconds(lane.buckets_ns[:, columns].sum(axis=1).mean())
                exposed[lane.rank] = max(exposed.get(lane.rank, 0.0), value)
        return exposed

    def unmarked_input_ms(self) -> dict[int, float]:
        """Unmarked time at step starts per step, in milliseconds, by rank."""
        return {
            lane.rank: milliseconds(length(lane.unmarked_input) / max(len(lane.step_ns), 1))
            for lane in self.attribution.lanes
        }

    def one_of_many(self) -> bool:
        """Whether these are the traces of one rank of a job that has several."""
        return len(self.timeline.ranks_present) == 1 and len(self.lanes) == 1 and self.timeline.world_size > 1
