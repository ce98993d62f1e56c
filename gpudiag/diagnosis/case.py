"""Case: the facts that every rule looks at, computed once and passed on frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.intervals import length
from gpudiag.model.analysis import BUCKETS
from gpudiag.units import milliseconds

if TYPE_CHECKING:
    from gpudiag.model.attribution import Attribution
    from gpudiag.model.facts import Facts
    from gpudiag.model.run import RunRecord
    from gpudiag.model.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job: what happened, and what is known of the machine and the run."""

    timeline: Timeline
    attribution: Attribution
    facts: Facts | None = None
    run: RunRecord | None = None

    @cached_property
    def step_ms(self) -> float:
        """Mean step time over all lanes, in milliseconds."""
        means = [float(lane.step_ns.mean()) for lane in self.attribution.lanes if len(lane.step_ns)]
        return milliseconds(float(np.mean(means))) if means else 0.0

    def exposed_ms(self, *buckets: str) -> dict[int, float]:
        """Exposed time in these buckets per step, in milliseconds, by lane index."""
        columns = [BUCKETS.index(bucket) for bucket in buckets]
        return {
            index: milliseconds(float(lane.buckets_ns[:, columns].sum(axis=1).mean())) if len(lane.buckets_ns) else 0.0
            for index, lane in enumerate(self.attribution.lanes)
        }

    def unmarked_input_ms(self) -> dict[int, float]:
        """Unmarked time at step starts per step, in milliseconds, by lane index."""
        return {
            index: milliseconds(length(lane.unmarked_input) / max(len(lane.step_ns), 1))
            for index, lane in enumerate(self.attribution.lanes)
        }

    def ranks_of(self, lanes: list[int]) -> tuple[int, ...]:
        """The ranks of these lanes, sorted, each once."""
        return tuple(sorted({self.timeline.lanes[index].rank for index in lanes}))
