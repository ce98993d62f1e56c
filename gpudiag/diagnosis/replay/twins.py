"""The same kernel at the same place of the step, on other ranks and in other steps: how long does it take undisturbed?

A collective's kernel that waits for a late rank spins on the device, and takes processors and memory bandwidth from the
kernels beside it: 31.2 against 28.3 ms of compute were measured on ranks whose all-reduces spun for 40 ms, and on the
late rank itself. When the waiting goes away, so does that. Kernels that ran beside a collective are therefore given the
time that their twins needed which ran beside none.

The profiler makes hosts late that would not be, and so makes their peers' collectives spin: with its cost taken out,
what kernels took longer because of that goes in proportion (30.3 to 29.3 ms for a GPT whose rank 3 the profiler made
late; 28.2 ms were measured unprofiled).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpudiag.intervals import Intervals, lengths_between, union
from gpudiag.model.timeline import UNKNOWN, OpClass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpudiag.diagnosis.replay.graph import Graph
    from gpudiag.model.timeline import Timeline

#: An op counts as undisturbed when less than this share of it ran beside a collective.
_UNDISTURBED = 0.05
#: With fewer undisturbed twins than this the median says too little.
_FEWEST_TWINS = 2


@dataclass(frozen=True, slots=True)
class Twins:
    """How long disturbed ops take undisturbed.

    Attributes:
        undisturbed_ns: float64[m], the median time of an op's undisturbed twins where it was disturbed itself and has
            enough of them; NaN elsewhere.
        beside_waiting: bool[m], whether what disturbed it was, in part at least, a collective that waited.
    """

    undisturbed_ns: NDArray[np.float64]
    beside_waiting: NDArray[np.bool_]

    def relieved(self, duration: NDArray[np.float64]) -> NDArray[np.float64]:
        """Durations without the disturbance; never longer than given."""
        return np.where(np.isnan(self.undisturbed_ns), duration, np.fmin(duration, self.undisturbed_ns))

    def relieved_of_waiting(self, duration: NDArray[np.float64], share: NDArray[np.float64]) -> NDArray[np.float64]:
        """Durations when this share (float64[m], 0 to 1) of the waiting is gone; never longer than given."""
        gained = np.where(self.beside_waiting, duration - self.relieved(duration), 0.0)
        return duration - share * gained


def find_twins(graph: Graph, timeline: Timeline) -> Twins:
    """Find each compute op's twins: the same name, the same place among the ops of that name in its step."""
    device = graph.device
    count = len(device.start)
    undisturbed = np.full(count, np.nan)
    compute = np.flatnonzero(device.op_class == OpClass.COMPUTE)
    if len(compute) == 0:
        return Twins(undisturbed, np.zeros(count, np.bool_))
    names: dict[str, int] = {}
    name = np.zeros(len(compute), np.int64)
    beside = np.zeros(len(compute))
    waiting = np.zeros(count)
    for lane_index in np.unique(device.lane[compute]):
        lane = timeline.lanes[lane_index]
        events = timeline.traces[lane.trace].events
        mine = np.flatnonzero(device.lane[compute] == lane_index)
        table = np.array([names.setdefault(text, len(names)) for text in events.names], np.int64)
        name[mine] = table[events.name[device.row[compute[mine]]]]
        communication = union(Intervals(lane.collectives.start, lane.collectives.end))
        beside[mine] = _inside(communication, device.start[compute[mine]], device.end[compute[mine]])
        matched = lane.collectives.last_arrival != UNKNOWN
        spinning = union(Intervals(lane.collectives.start[matched], lane.collectives.last_arrival[matched]))
        waiting[compute[mine]] = _inside(spinning, device.start[compute[mine]], device.end[compute[mine]])
    duration = (device.end - device.start)[compute]
    # Rank ops of one (lane, step, name) by start: their place.
    order = np.lexsort((device.start[compute], name, device.step[compute], device.lane[compute]))
    key = np.stack([device.lane[compute][order], device.step[compute][order], name[order]])
    opens = np.concatenate([[True], (np.diff(key, axis=1) != 0).any(axis=0)])
    first = np.flatnonzero(opens)
    place = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    twin = np.empty(len(compute), np.int64)
    twin[order] = name[order] * (int(place.max()) + 1) + place
    calm = beside < _UNDISTURBED * np.maximum(duration, 1.0)
    typical = _median_by_group(twin[calm], duration[calm])
    for position in np.flatnonzero(~calm):
        found = typical.get(int(twin[position]))
        if found is not None:
            undisturbed[compute[position]] = found
    return Twins(undisturbed, waiting >= _UNDISTURBED * np.maximum(device.end - device.start, 1.0))


def _inside(spans: Intervals, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Length of the set inside each op; the ops may overlap."""
    order = np.argsort(start, kind="stable")
    points = np.unique(np.concatenate([start, end]).astype(np.int64))
    covered = np.concatenate([[0], np.cumsum(lengths_between(spans, points))])
    result = np.empty(len(start))
    a = np.searchsorted(points, start[order].astype(np.int64))
    b = np.searchsorted(points, end[order].astype(np.int64))
    result[order] = covered[b] - covered[a]
    return result


def _median_by_group(group: NDArray[np.int64], value: NDArray[np.float64]) -> dict[int, float]:
    order = np.lexsort((value, group))
    group, value = group[order], value[order]
    first = np.flatnonzero(np.concatenate([[True], np.diff(group) != 0])) if len(group) else np.empty(0, np.intp)
    sizes = np.diff(np.append(first, len(group)))
    return {
        int(group[f]): float(value[f + (size - 1) // 2])
        for f, size in zip(first, sizes, strict=True)
        if size >= _FEWEST_TWINS
    }
