"""Simulate all steps of a job: start each operation when everything before it has ended."""

from __future__ import annotations

import msgspec
import numpy as np

from gpudiag.analysis.pipeline.graph import OperationGraph, last_start
from gpudiag.analysis.pipeline.grid import OperationGrid, Times


class SimulatedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Starts and ends, `[slot, step, data rank]`, in ms since the step began."""

    starts_ms: Times
    ends_ms: Times

    @property
    def step_ms(self) -> Times:
        """Return float64[steps]: the time of each step in ms."""
        return np.asarray(self.ends_ms.max(axis=(0, 2)) - self.starts_ms.min(axis=(0, 2)))


def simulate(graph: OperationGraph, durations_ms: Times, gaps_ms: Times | None = None) -> SimulatedSteps:
    """Simulate steps from the durations of their operations.

    Args:
        graph: dependencies.
        durations_ms: `[slot, step, data rank]`, without waiting; the members of a group transfer once all have started.
        gaps_ms: the host's delay of each operation, `[slot, 1, 1]`; None for no delay.
    """
    starts, ends = np.zeros_like(durations_ms), np.zeros_like(durations_ms)
    for group in graph.groups:
        rows = list(group.rows)
        for row in rows:
            if graph.before[row]:
                starts[row] = ends[list(graph.before[row])].max(axis=0)
            if gaps_ms is not None:
                starts[row] += gaps_ms[row]
        if len(rows) > 1 or group.across_data_ranks:
            ends[rows] = last_start(starts[rows], across_data_ranks=group.across_data_ranks) + durations_ms[rows]
        else:
            ends[rows] = starts[rows] + durations_ms[rows]
    return SimulatedSteps(starts_ms=starts, ends_ms=ends)


def typical_gaps(grid: OperationGrid, graph: OperationGraph) -> Times:
    """Return the host's delay of each operation, `[slot, 1, 1]`, ms: minimum over data ranks, median over steps.

    The minimum is used because an unrecorded synchronization makes all workers except the last wait.
    """
    ends = grid.ends_ms
    ready = np.stack([ends[list(rows)].max(axis=0) if rows else np.zeros(ends.shape[1:]) for rows in graph.before])
    smallest = np.maximum(grid.starts_ms - ready, 0.0).min(axis=2)
    return np.asarray(np.median(smallest, axis=1)[:, None, None])
