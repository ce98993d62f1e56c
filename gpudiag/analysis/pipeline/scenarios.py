"""Simulate counterfactual scenarios: the ideal step, and steps without one cause of imbalance."""

from __future__ import annotations

import msgspec
import numpy as np

from gpudiag.analysis.pipeline.effects import ComputeFactors, compute_factors
from gpudiag.analysis.pipeline.graph import OperationGraph, build_graph, transfer_durations
from gpudiag.analysis.pipeline.grid import OperationGrid, Times
from gpudiag.analysis.pipeline.simulate import SimulatedSteps, simulate, typical_gaps
from gpudiag.model.parallelism import Imbalance, ImbalanceCause, theoretical_bubble_percent
from gpudiag.model.parallelism.operations import COMPUTE_KINDS, LOCAL_KINDS, OPERATION_KINDS
from gpudiag.model.parallelism.pipeline_analysis import ScheduleBubble


class SimulatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its simulation.

    Attributes:
        grid, graph: operations and their dependencies.
        durations_ms: durations without waiting for other members of a transfer, `[slot, step, data rank]`.
        steps: the simulated recorded steps, without host gaps.
        ideal: the step with `ideal_durations`; its arrays have one step and one data rank.
        factors: how much longer than usual computations take (1 = usual, 1.2 = 20 % longer), because of their stage
            (`stage`, `[slot, 1, 1]`), their worker (`worker`, `[slot, 1, data rank]`) or their microbatch (`sequence`,
            `[slot, step, data rank]`). Slots that do not compute have 1.
    """

    grid: OperationGrid
    graph: OperationGraph
    durations_ms: Times
    steps: SimulatedSteps
    ideal: SimulatedSteps
    factors: ComputeFactors

    def step_ms_without(self, factor: Times) -> Times:
        """Return float64[steps]: the simulated step times, in ms, if durations are divided by `factor`."""
        return simulate(self.graph, self.durations_ms / factor).step_ms


def simulate_job(grid: OperationGrid) -> SimulatedJob:
    """Simulate the recorded steps and the ideal step.

    Raises:
        UnreadableInputError: a send has no receive, or the recorded order contradicts itself.
    """
    graph = build_graph(grid)
    durations = transfer_durations(grid, graph)
    return SimulatedJob(
        grid=grid,
        graph=graph,
        durations_ms=durations,
        steps=simulate(graph, durations),
        ideal=simulate(graph, ideal_durations(grid, durations)),
        factors=compute_factors(grid, durations),
    )


def ideal_durations(grid: OperationGrid, durations_ms: Times) -> Times:
    """Return the durations of the ideal step, `[slot, 1, 1]`, ms.

    A local operation takes the mean of its kind over all workers, steps and microbatches. A transfer takes the median,
    because single transfers may be slower by orders of magnitude (Lin et al., "Understanding Stragglers in Large
    Model Training Using What-if Analysis", OSDI 2025).
    """
    ideal = np.zeros((len(grid.slots), 1, 1))
    for kind in OPERATION_KINDS:
        if rows := grid.rows_of(kind):
            typical = np.mean if kind in LOCAL_KINDS else np.median
            ideal[rows] = typical(durations_ms[rows])
    return ideal


def replay_error_percent(job: SimulatedJob) -> float:
    """Return the mean absolute error, in percent, of step times that are simulated with typical host gaps."""
    replayed = simulate(job.graph, job.durations_ms, typical_gaps(job.grid, job.graph)).step_ms
    return 100 * float(np.mean(np.abs(replayed - job.grid.step_ms) / np.maximum(job.grid.step_ms, 1e-9)))


def imbalance_of(job: SimulatedJob) -> Imbalance:
    """Return the slowdown relative to the ideal step, and the effect of removing each cause alone.

    A cause is removed by dividing durations by its factor, so that differences between the workers of a stage (`rank`),
    between stages, or between microbatches (`sequence`) vanish. This also lengthens computations that are shorter than
    usual. If this makes the step longer, removing the cause saves nothing.
    """
    step_ms, ideal_ms = float(job.steps.step_ms.mean()), float(job.ideal.step_ms.mean())
    factors = {"rank": job.factors.worker, "stage": job.factors.stage, "sequence": job.factors.sequence}
    by = {}
    for cause, factor in factors.items():
        without_ms = float(job.step_ms_without(factor).mean())
        by[cause] = ImbalanceCause(slowdown=_ratio(step_ms, without_ms), saved_ms=max(step_ms - without_ms, 0.0))
    return Imbalance(slowdown=_ratio(step_ms, ideal_ms), ideal_ms=ideal_ms, by=by)


def _ratio(time_ms: float, other_ms: float) -> float:
    return time_ms / other_ms if other_ms > 0 else 1.0


def bubble_of(job: SimulatedJob) -> ScheduleBubble | None:
    """Return the mean idle time of stages in the ideal step; None without a pipeline, or if computing takes no time."""
    grid = job.grid
    if grid.stages < 2 or not grid.microbatches:
        return None
    computes = grid.rows_of(*COMPUTE_KINDS)
    starts, ends = job.ideal.starts_ms[computes, 0, 0], job.ideal.ends_ms[computes, 0, 0]
    span = float(ends.max() - starts.min())
    if span <= 0:
        return None
    idle = max(span - float((ends - starts).sum()) / grid.stages, 0.0)  # rounding may give a negative difference
    theoretical = theoretical_bubble_percent(grid.stages, grid.microbatches, grid.chunks_per_stage)
    return ScheduleBubble(percent=100 * idle / span, theoretical_percent=theoretical, ms=idle)
