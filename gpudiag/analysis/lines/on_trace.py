"""Put the lines of a section of the line log on the clock of its trace.

At the begin of a step, the line log gets an event and, microseconds later, the trace gets a mark. The median difference
between events and marks is the offset between the clocks.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.lines.times import ProcessTimes
from gpudiag.analysis.lines.walk import NO_LINE, Walked
from gpudiag.intervals import Intervals, lengths_inside, union
from gpudiag.units import NS_PER_MS

#: Maximum median absolute deviation of the differences (step mark in the trace - step in the line log). A larger
#: deviation shows that section and trace have different steps.
_MAX_SPREAD_NS = 2 * NS_PER_MS
#: Minimum number of steps paired with marks.
_MIN_STEPS = 2

Times = NDArray[np.int64]


class LinesOnTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive stretches of the training thread's time, with the one line that runs in each stretch.

    Attributes:
        start, end: int64[n], ns, on the clock of the step marks.
        node: int64[n], node of the line that runs.
        tracing_ns: float64[n], cost of `sys.settrace` within each stretch, ns; empty if the cost is unknown or 0.
    """

    start: Times
    end: Times
    node: NDArray[np.int64]
    tracing_ns: NDArray[np.float64] = np.zeros(0)

    def inside(self, times: Intervals) -> LinesOnTrace:
        """Return the parts of the stretches within `times` (sorted, disjoint). The result has no `tracing_ns`."""
        first = np.searchsorted(times.end, self.start, side="right")
        last = np.searchsorted(times.start, self.end, side="left")
        count = np.maximum(last - first, 0)  # number of `times` that each stretch overlaps
        # One element per overlap: the index of its stretch, and the index of its interval in `times`.
        stretch = np.repeat(np.arange(len(self.node)), count)
        index = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + first[stretch]
        return LinesOnTrace(
            start=np.maximum(self.start[stretch], times.start[index]),
            end=np.minimum(self.end[stretch], times.end[index]),
            node=self.node[stretch],
        )

    def without(self, nodes: NDArray[np.int64]) -> LinesOnTrace:
        """Return the stretches that are not in the given lines."""
        if not len(nodes):
            return self
        kept = ~np.isin(self.node, nodes)
        return LinesOnTrace(start=self.start[kept], end=self.end[kept], node=self.node[kept])

    def of(self, nodes: NDArray[np.int64]) -> Intervals:
        """Return the times in the given lines as sorted disjoint intervals."""
        chosen = np.isin(self.node, nodes) & (self.end > self.start)
        return union(Intervals(self.start[chosen], self.end[chosen]))

    def by_node(self, begin_ns: float, end_ns: float) -> dict[int, float]:
        """Return node → ns between `begin_ns` and `end_ns` in the node's line."""
        first = int(np.searchsorted(self.end, begin_ns, side="right"))
        last = int(np.searchsorted(self.start, end_ns, side="left"))
        amounts: dict[int, float] = {}
        for index in range(first, last):
            ns = min(float(self.end[index]), end_ns) - max(float(self.start[index]), begin_ns)
            if ns > 0:
                node = int(self.node[index])
                amounts[node] = amounts.get(node, 0.0) + ns
        return amounts

    def tracing_until(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64[len(times)], ns: the cost of `sys.settrace` from the first stretch until each time."""
        if not len(self.tracing_ns):
            return np.zeros(len(times))
        # A stretch's cost is spread evenly over the stretch. Between stretches, tracing costs nothing.
        bounds = np.column_stack([self.start, self.end]).ravel()
        cost = np.column_stack([np.zeros(len(self.start)), self.tracing_ns]).ravel()
        until: NDArray[np.float64] = np.interp(times, bounds, np.cumsum(cost))
        return until

    def time_inside(self, times: Intervals, nodes: int) -> NDArray[np.float64]:
        """Return float64[nodes], ns: time in each line within `times`, which are sorted and disjoint."""
        amounts = np.zeros(nodes)
        np.add.at(amounts, self.node, lengths_inside(times, self.start, self.end))
        return amounts


def lines_on_trace(process: ProcessTimes, mark_start: Times) -> LinesOnTrace | None:
    """Return the lines of the section whose steps fit the marks best; None if no section fits.

    Sections of kind "alone" were recorded without the profiler, so that no trace shows these steps.

    `mark_start`, int64[steps], is the begin of each step mark in the process's trace, in ns.
    """
    fits = [
        (spread, shift, walked)
        for section, walked in process.sections
        if section.kind != "alone"
        for spread, shift in _fits(walked, mark_start)
    ]
    if not fits:
        return None
    spread, shift, walked = min(fits, key=lambda fit: fit[0])
    if spread > _MAX_SPREAD_NS or len(walked.time_ns) < 2:
        return None
    time = np.array(walked.time_ns, np.int64) + int(shift)
    node = np.array(walked.node[:-1], np.int64)
    lines = node != NO_LINE
    tracing_ns = np.zeros(0)
    if process.log.by == "traced":
        # Each stretch begins with one event; calls of unrecorded functions are events too.
        events = np.ones(len(walked.time_ns))
        for index, calls in walked.calls.items():
            events[max(index, 0)] += calls  # -1: before the first event
        tracing_ns = process.log.call_ns * events[:-1][lines]
    return LinesOnTrace(start=time[:-1][lines], end=time[1:][lines], node=node[lines], tracing_ns=tracing_ns)


def _fits(walked: Walked, mark_start: Times) -> list[tuple[float, float]]:
    """Return (median deviation, clock offset) in ns for each way to pair steps with marks, which begin at `mark_start`.

    Either side may lack up to two first steps. Each lacking step adds 1 ns to the deviation, so that of equal fits the
    fit without lacking steps is preferred.
    """
    steps = np.array(walked.step_ns[:-1], np.int64)
    fits = []
    for offset in (0, 1, -1, 2, -2):
        ours, theirs = steps[max(0, -offset) :], mark_start[max(0, offset) :]
        count = min(len(ours), len(theirs))
        if count < _MIN_STEPS or count < min(len(steps), len(mark_start)) - abs(offset):
            continue
        difference = (theirs[:count] - ours[:count]).astype(np.float64)
        shift = float(np.median(difference))
        fits.append((float(np.median(np.abs(difference - shift))) + abs(offset), shift))
    return fits
