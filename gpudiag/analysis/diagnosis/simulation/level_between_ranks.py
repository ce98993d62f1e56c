"""What a rank does more of than its peers, and where in the step it does it.

The totals of a step say how much is too much; the segments between collectives say where. Work in ms of two ranks that
meet in a broadcast before the forward pass and in an all-reduce after the backward pass:

    rank 0     0.5 | broadcast | 41 | all-reduce      total 41.5
    rank 1    22   | broadcast | 40 | all-reduce      total 62,  20.5 more than rank 0

All 20.5 ms are taken from before the broadcast: rank 1 exceeds rank 0 nowhere else. Taken from everything alike, two
thirds of them would come from where rank 1 is no later than its peer, and rank 0 would still wait for 14 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.simulation.graph import NONE, Graph
from gpudiag.model.timeline import OpClass

Amounts = NDArray[np.float64]
Index = NDArray[np.int64]


def host_segments(graph: Graph) -> Index:
    """int64[n]: how many collectives the process had launched in the step before each host node."""
    host, device = graph.host, graph.device
    launches = np.zeros(len(host.time), np.int64)
    given = device.launch[(device.op_class == OpClass.COMMUNICATION) & (device.launch != NONE)]
    np.add.at(launches, given, 1)
    segment = np.zeros(len(host.time), np.int64)
    for first, after in graph.chains:
        before = np.concatenate([[0], np.cumsum(launches[first:after])[:-1]])
        opens = np.concatenate([[True], np.diff(host.step[first:after]) != 0])
        at_opening = np.maximum.accumulate(np.where(opens, before, 0))
        segment[first:after] = before - at_opening
    return segment


def op_segments(graph: Graph, segment_of_node: Index) -> Index:
    """int64[m]: the segment of the launch of each device op; 0 where that is not known."""
    launch = graph.device.launch
    return np.where(launch != NONE, segment_of_node[np.maximum(launch, 0)], 0).astype(np.int64)


def above_level(amount: Amounts, cell: Index, segment: Index, used: Index) -> Amounts:
    """What of each node's amount is above the level of all cells: shape as `amount`.

    What a cell has above the level is its total less the lower median of all cells' totals, where that is positive. It
    is taken from the cell's segments in proportion to what each is above the lower median of that segment over all
    cells; what that does not yield, from everything alike.

    Args:
        amount: float64[n], not negative.
        cell: int64[n], what is levelled: a process, or a step of a process.
        segment: int64[n], where in the step.
        used: the cells to compare.
    """
    if len(amount) == 0 or len(used) == 0:
        return np.zeros_like(amount)
    cells, segments = int(max(cell.max(), used.max())) + 1, int(segment.max()) + 1
    # Most parts of a step are those of a few nodes.
    some = np.flatnonzero(amount) if 2 * np.count_nonzero(amount) < len(amount) else slice(None)
    slot = cell[some] * segments + segment[some]
    flat: Amounts = np.bincount(slot, weights=amount[some], minlength=cells * segments).astype(np.float64)
    parts = flat.reshape(cells, segments)
    total = parts.sum(axis=1)
    over = np.maximum(total - lower_median(total[used]), 0.0)
    above = np.maximum(parts - lower_median(parts[used]), 0.0)
    yields = above.sum(axis=1)
    from_above = np.minimum(over, yields)
    rest = over - from_above
    with np.errstate(divide="ignore", invalid="ignore"):
        taken = above * np.where(yields > 0, from_above / yields, 0.0)[:, None]
        left = total - from_above
        taken += (parts - taken) * np.where(left > 0, rest / left, 0.0)[:, None]
        share: Amounts = np.where(parts > 0, taken / parts, 0.0)
    found = np.zeros_like(amount)
    found[some] = amount[some] * share.reshape(-1)[slot]
    return found


def lower_median(values: Amounts) -> Amounts:
    """The median over the first axis; of an even number the smaller of the two in the middle."""
    found: Amounts = np.sort(values, axis=0)[(len(values) - 1) // 2]
    return found
