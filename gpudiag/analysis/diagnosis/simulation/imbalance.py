"""Measure a rank's excess over its peers, and locate it in the step.

The totals of a step show the size of the excess; the segments between collectives show its location. Worked example:
the work, in ms, of two ranks that meet in a broadcast before the forward pass and in an all-reduce after the backward
pass:

    rank 0     0.5 | broadcast | 41 | all-reduce      total 41.5
    rank 1    22   | broadcast | 40 | all-reduce      total 62,  20.5 more than rank 0

All 20.5 ms are removed before the broadcast, because rank 1 exceeds rank 0 nowhere else. If the excess were removed in
proportion to all work, two thirds of it would be removed after the broadcast, where rank 1 has no excess, and rank 0
would still wait 14 ms.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gpudiag.analysis.diagnosis.calibration import BEYOND_CHANCE
from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph, Index, Times
from gpudiag.model.timeline import OpClass
from gpudiag.statistics import mean_of


def host_segments(graph: Graph) -> Index:
    """Return int64[n]: the number of collectives that the process launched before each host node in the node's step."""
    host, device = graph.host, graph.device
    collectives = device.launch[(device.op_class == OpClass.COMMUNICATION) & (device.launch != NONE)]
    launches = np.bincount(collectives, minlength=len(host.time))
    segment = np.zeros(len(host.time), np.int64)
    for first, after in graph.chains:
        before = np.cumsum(launches[first:after]) - launches[first:after]
        opens_step = np.diff(host.step[first:after], prepend=-1) != 0
        segment[first:after] = before - np.maximum.accumulate(np.where(opens_step, before, 0))
    return segment


def op_segments(graph: Graph, segment_of_node: Index) -> Index:
    """Return int64[m]: the segment in which each device op is launched; 0 if unknown."""
    launch = graph.device.launch
    return np.where(launch != NONE, segment_of_node[np.maximum(launch, 0)], 0).astype(np.int64)


def excess_over_median(amount: Times, cell: Index, segment: Index, used: Index) -> Times:
    """Return float64[n]: the excess of each cell's total over the lower median of all totals, divided among its nodes.

    The excess is divided among the cell's segments in proportion to each segment's excess over its lower median. If the
    segments' excesses are too small, the remainder is divided in proportion to the amounts that are left.

    Args:
        amount: float64[n], not negative.
        cell: int64[n], the compared unit: a process, or a step of a process.
        segment: int64[n], the segment of the step between two collectives.
        used: the cells to compare.
    """
    if len(amount) == 0 or len(used) == 0:
        return np.zeros_like(amount)
    cells, segments = int(max(cell.max(), used.max())) + 1, int(segment.max()) + 1
    # Most components are nonzero at few nodes. The tables below have a row per cell and a column per segment.
    nonzero = np.flatnonzero(amount) if 2 * np.count_nonzero(amount) < len(amount) else slice(None)
    slot = cell[nonzero] * segments + segment[nonzero]
    sums = np.bincount(slot, weights=amount[nonzero], minlength=cells * segments).astype(np.float64)
    by_segment: Times = sums.reshape(cells, segments)
    total = by_segment.sum(axis=1)
    excess = np.maximum(total - lower_median(total[used]), 0.0)
    segment_excess = np.maximum(by_segment - lower_median(by_segment[used]), 0.0)
    available = segment_excess.sum(axis=1)
    from_segments = np.minimum(excess, available)  # the rest of the excess is the remainder
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = segment_excess * np.where(available > 0, from_segments / available, 0.0)[:, None]
        left = total - from_segments
        taken += (by_segment - taken) * np.where(left > 0, (excess - from_segments) / left, 0.0)[:, None]
        share: Times = np.where(by_segment > 0, taken / by_segment, 0.0)
    result = np.zeros_like(amount)
    result[nonzero] = amount[nonzero] * share.reshape(-1)[slot]
    return result


def lower_median(values: Times) -> Times:
    """Return the median over the first axis; of an even number of values, the smaller middle value."""
    median: Times = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return median


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """The excess of each rank's time in a component of the step over the lower median of the rank's peers.

    Attributes:
        by_rank: rank → ns per step.
        by_step: rank → ns of each step, compared with the ranks' median in that step.
    """

    by_rank: dict[int, float]
    by_step: dict[int, tuple[float, ...]]

    def steady(self, rank: int) -> bool:
        """Return whether the rank's mean excess over the steps is significant, so that it is hardly due to chance."""
        if len(self.by_step[rank]) < 2:
            return False
        mean = mean_of(self.by_step[rank], as_measured=True)
        return mean.value >= BEYOND_CHANCE * mean.standard_error


def excess_over_peers(graph: Graph, amount: Times, process: Index, step: Index) -> Excess:
    """Return the excess of each rank's time in a component of the step over the rank's peers.

    Args:
        graph: the job's graph.
        amount: float64[k], ns of a component at each node or op.
        process, step: int64[k], process and step of each node or op.
    """
    steps = max(graph.steps, 1)
    cell = process * steps + np.minimum(step, steps - 1)  # a track may have more steps than the job
    sums = np.bincount(cell, weights=amount, minlength=(max(graph.ranks) + 1) * steps).astype(np.float64)
    by_process: Times = sums.reshape(-1, steps)
    excess = by_process.copy()
    for peers in graph.peers:
        excess[peers] -= lower_median(by_process[peers])
    totals = by_process.mean(axis=1)
    reference = {process: float(lower_median(totals[peers])) for peers in graph.peers for process in peers}
    return Excess(
        by_rank={rank: float(totals[process] - reference[process]) for process, rank in graph.ranks.items()},
        by_step={rank: tuple(excess[process].tolist()) for process, rank in graph.ranks.items()},
    )
