"""Compute the time per source line and step, from the steps without the profiler.

The first steps record every line. Later steps omit lines that run too often, so that the time of an omitted line is
counted for the recorded line before it. The time that a recorded line gains in later steps is moved to the omitted
lines, in the proportions of the first steps.

Worked example. In the first steps a hook spends 0.1 ms in its first line and 8 ms in two lines of a loop, which run
1,000 times each. In later steps only the first line is recorded, with 6.1 ms. The loop's lines get 6 ms of this time.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.lines.walk import NO_LINE, ROOT, LineTree, Walked, walk
from gpudiag.model.source_lines.log import LogSection, ProcessLines
from gpudiag.units import NS_PER_MS

#: Number of first steps that record every line, if more steps follow.
_DISCOVERY_STEPS = 2
#: Way of recording (`ProcessLines.by`) → cost in ns of one event in the first steps.
_EVENT_NS = {"events": 400, "traced": 700}
#: Maximum share of a line's time that is subtracted as the cost of recording events, in the first steps.
_MAX_EVENT_SHARE = 0.6
#: Maximum share of a line's time that is subtracted as the cost of tracing, in the later (reported) steps.
_MAX_EVENT_SHARE_LATER = 0.95
#: A line counts as omitted if it has fewer events per later step than this share of its events per first step.
_OMITTED_SHARE = 0.3
#: Minimum events of an omitted line per first step. A rarer line may not have run in later steps.
_OMITTED_EVENTS = 1

#: Lines are not scaled if traced steps differ from unprofiled steps plus the cost of events by at most this share.
_SAME_PACE = 0.1

Times = NDArray[np.float64]


class ProcessTimes:
    """Lines of one process, and the time of each.

    Args:
        log: the process's log.
        step_ms: mean time of an unprofiled step, if known. Steps with traced lines should take this time plus the cost
            of events. If the cost is known and the steps take another time, other programs slowed the steps, and all
            lines are scaled. If the cost is unknown, the whole difference counts as cost.

    Attributes:
        log: the process's log.
        tree: the lines, from all sections.
        sections: each section of the log with its timeline of lines.
    """

    def __init__(self, log: ProcessLines, step_ms: float | None = None) -> None:
        self.log = log
        self._step_ms = step_ms
        self.tree = LineTree()
        self.sections: list[tuple[LogSection, Walked]] = [
            (section, walk(self.tree, log, section)) for section in log.sections
        ]

    @cached_property
    def alone(self) -> Walked | None:
        """Return the section without the profiler."""
        return next((walked for section, walked in self.sections if section.kind == "alone"), None)

    @property
    def frames(self) -> int:
        """Return how many outermost frames of the log's stack stay open in the section without the profiler.

        If there is no such section, all sections count.
        """
        walked = [self.alone] if self.alone is not None else [walked for _, walked in self.sections]
        return min((section.frames for section in walked), default=len(self.log.stack))

    @property
    def steps(self) -> int:
        """Return the number of later steps, which `self_ns` describes."""
        return int(self.self_ns.shape[1])

    @cached_property
    def self_ns(self) -> Times:
        """Return float64[nodes, steps], ns: time in each line itself; node 0 has the time outside of any line."""
        recorded = self._recorded_ns
        first = self._discovery_steps
        later = recorded[:, first:].copy()
        if self.log.by == "traced" and later.size:
            self._remove_cost(later, first)
        if first and later.shape[1]:
            self._give_back(later)
        return later

    def _remove_cost(self, later: Times, first: int) -> None:
        """Subtract the cost of tracing from `later` (float64[nodes, later steps], ns), in place.

        `first` is the number of first steps. Each event, and each call of an unrecorded function, costs the same.
        The cost belongs to the current line.
        """
        walked = self.alone
        assert walked is not None  # noqa: S101  # `later` has steps
        bounds = np.array(walked.step_ns)
        weight = np.ones(len(walked.node))
        for index, calls in walked.calls.items():
            weight[max(index, 0)] += calls  # -1: before the first event
        step = np.searchsorted(bounds, np.array(walked.time_ns), side="right") - 1
        node = np.array(walked.node)
        inside = (step >= first) & (step < len(bounds) - 1) & (node != NO_LINE)
        weights = np.zeros_like(later)
        np.add.at(weights, (node[inside], step[inside] - first), weight[inside])
        slowed, per_event = self._cost_of_tracing(later, float(weights.sum(axis=0).mean()))
        later /= slowed
        later -= np.minimum(per_event * weights, _MAX_EVENT_SHARE_LATER * later)

    def _cost_of_tracing(self, later: Times, weight: float) -> tuple[float, float]:
        """Return (factor by which steps are slower than the cost of tracing explains, this cost per event in ns).

        A factor within `_SAME_PACE` of 1 counts as 1.

        Args:
            later: float64[nodes, steps], ns as recorded.
            weight: number of events and calls per step.
        """
        recorded = float(later.sum(axis=0).mean())
        unprofiled = recorded if self._step_ms is None else self._step_ms * NS_PER_MS
        if self.log.call_ns <= 0:
            return 1.0, max(0.0, recorded - unprofiled) / max(1.0, weight)
        traced = unprofiled + (self.log.call_ns * weight if self._step_ms is not None else 0.0)
        slowed = recorded / max(traced, 1.0)
        return (slowed if abs(slowed - 1) > _SAME_PACE else 1.0), self.log.call_ns

    @cached_property
    def total_ns(self) -> Times:
        """Return float64[nodes, steps], ns: time in each line and its callees; node 0 has the whole step."""
        return self.tree.with_callees(self.self_ns)

    @cached_property
    def omitted(self) -> set[int]:
        """Return the nodes of the lines that later steps omit."""
        if self.alone is None or not self._discovery_steps:
            return set()
        first, later = self._events(0, self._discovery_steps), self._events(self._discovery_steps, None)
        return {
            int(node)
            for node in np.flatnonzero((first >= _OMITTED_EVENTS) & (later < _OMITTED_SHARE * first))
            if node != ROOT
        }

    @property
    def _discovery_steps(self) -> int:
        steps = self._recorded_ns.shape[1]
        return _DISCOVERY_STEPS if steps > _DISCOVERY_STEPS else 0

    @cached_property
    def _recorded_ns(self) -> Times:
        """Return float64[nodes, all steps], ns: recorded time in each line itself."""
        walked = self.alone
        nodes = len(self.tree.parent)
        if walked is None or len(walked.step_ns) < 2:
            return np.zeros((nodes, 0))
        bounds = np.array(walked.step_ns)
        time, node = np.array(walked.time_ns), np.array(walked.node)
        step = np.searchsorted(bounds, time, side="right") - 1
        inside = (step[:-1] >= 0) & (step[:-1] < len(bounds) - 1) & (node[:-1] != NO_LINE)
        recorded = np.zeros((nodes, len(bounds) - 1))
        # A step's end is also an event, so that the time between two events belongs to one step.
        np.add.at(recorded, (node[:-1][inside], step[:-1][inside]), np.diff(time)[inside])
        return recorded

    def _events(self, begin: int, end: int | None) -> Times:
        """Return float64[nodes]: median number of events per step, from `begin` to `end - 1` (None: to the last)."""
        walked = self.alone
        assert walked is not None  # noqa: S101  # the callers check
        bounds = walked.step_ns[begin : None if end is None else end + 1]
        step = np.searchsorted(np.array(bounds), np.array(walked.time_ns), side="right") - 1
        node = np.array(walked.node)
        inside = (step >= 0) & (step < len(bounds) - 1) & (node != NO_LINE)
        counts = np.zeros((len(self.tree.parent), max(1, len(bounds) - 1)))
        np.add.at(counts, (node[inside], step[inside]), 1)
        return np.median(counts, axis=1)

    def _give_back(self, later: Times) -> None:
        """Move time in `later`, in place, from recorded lines to the omitted lines that run after them.

        `later` is as in `_remove_cost`.
        """
        if not self.omitted:
            return
        cost = _EVENT_NS[self.log.by]
        first = self._recorded_ns[:, : self._discovery_steps].min(axis=1)
        events = self._events(0, self._discovery_steps)
        corrected = first - np.minimum(cost * events, _MAX_EVENT_SHARE * first)
        # Caller and function → omitted lines. Their time was counted for the caller or the function's recorded lines.
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node in self.omitted:
            groups[self.tree.parent[node], self.tree.position[node][0]].append(node)
        children = self.tree.children()
        # Callers come first, because an omitted line passes time on to the omitted lines of its callees.
        for (parent, code), nodes in sorted(groups.items()):
            below = {node: self.tree.subtree(node) for node in nodes}
            weight = np.array([corrected[below[node]].sum() for node in nodes])
            if not weight.sum():
                continue
            siblings = [node for node in children[parent] if self.tree.position[node][0] == code and node not in nodes]
            sources = [parent, *siblings]
            excess = np.maximum(later[sources] - first[sources, None], 0.0)
            # The moved time is at most twice the omitted lines' time in the first steps, because times vary.
            limit = np.minimum(1.0, 2 * weight.sum() / np.maximum(excess.sum(axis=0), 1e-9))
            excess *= limit
            later[sources] -= excess
            later[nodes] += np.outer(weight / weight.sum(), excess.sum(axis=0))
