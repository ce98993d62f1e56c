"""By how much a rank's part of the step is above what its peers need, and whether that is more than chance."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import BEYOND_CHANCE
from gpudiag.analysis.diagnosis.simulation.graph import Graph
from gpudiag.analysis.diagnosis.simulation.level_between_ranks import lower_median
from gpudiag.statistics import mean_of


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """By how much each rank's part of the step is above what its peers need.

    Attributes:
        part: which part.
        by_rank: rank → ns per step, above the lower median of the ranks' totals.
        by_step: rank → ns of each step, above the lower median of the ranks' in that step.
    """

    part: str
    by_rank: dict[int, float]
    by_step: dict[int, tuple[float, ...]]

    def steady(self, rank: int) -> bool:
        """Whether the rank is above its peers step after step: its mean excess is twice what chance would leave."""
        steps = self.by_step[rank]
        if len(steps) < 2:
            return False
        excess = mean_of(steps, as_measured=True)
        return excess.value >= BEYOND_CHANCE * excess.standard_error


def above_peers(
    graph: Graph, part: str, amount: NDArray[np.float64], process: NDArray[np.int64], step: NDArray[np.int64]
) -> Excess:
    """By how much each rank's part of the step is above the lower median of the ranks'.

    Args:
        graph: the job.
        part: which part.
        amount: float64[k], ns of it at each node or op.
        process, step: int64[k], of each.
    """
    steps = max(graph.steps, 1)
    cell = process * steps + np.minimum(step, steps - 1)
    by_process = np.bincount(cell, weights=amount, minlength=(max(graph.ranks) + 1) * steps).reshape(-1, steps)
    used = list(graph.ranks)
    totals = by_process.mean(axis=1)
    reference = float(lower_median(totals[used]))
    by_step = by_process - np.sort(by_process[used], axis=0)[(len(used) - 1) // 2]
    return Excess(
        part=part,
        by_rank={rank: float(totals[q] - reference) for q, rank in graph.ranks.items()},
        by_step={rank: tuple(by_step[q].tolist()) for q, rank in graph.ranks.items()},
    )
