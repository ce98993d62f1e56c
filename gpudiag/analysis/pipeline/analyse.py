"""Analyse a table of operations: arrange and simulate it, measure imbalance and bubble, and derive findings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

import numpy as np

from gpudiag.analysis.pipeline.findings import findings_of
from gpudiag.analysis.pipeline.grid import OperationGrid, arrange
from gpudiag.analysis.pipeline.scenarios import (
    SimulatedJob,
    bubble_of,
    imbalance_of,
    replay_error_percent,
    simulate_job,
)
from gpudiag.errors import UnreadableInputError
from gpudiag.model.analysis import Validity
from gpudiag.model.parallelism.operations import COMPUTE_KINDS, FORWARD, OperationTable
from gpudiag.model.parallelism.pipeline_analysis import ParallelGrid, PipelineAnalysis, PipelineWorker

#: The simulation does not explain the recorded steps if its mean error exceeds this percentage.
_MOST_REPLAY_ERROR_PERCENT = 5.0
#: A warning is given for fewer complete steps than this.
_FEW_STEPS = 3


def analyse_operations(table: OperationTable) -> PipelineAnalysis:
    """Return the analysis of a job.

    Raises:
        UnreadableInputError: no step is complete, a stage has no forward computations, or operations do not match.
    """
    grid = arrange(table)
    if any(not grid.rows_of(FORWARD, stage=stage) for stage in range(grid.stages)):
        raise UnreadableInputError(f"{table.source}: a stage has no forward computations", "Record all operations.")
    try:
        job = simulate_job(grid)
    except UnreadableInputError as error:
        raise UnreadableInputError(f"{table.source}: {error}", error.hint) from error
    imbalance, bubble = imbalance_of(job), bubble_of(job)
    step_ms, simulated_ms = float(grid.step_ms.mean()), float(job.steps.step_ms.mean())
    replay_error = replay_error_percent(job)
    return PipelineAnalysis(
        source=table.source,
        grid=_parallel_grid(grid),
        step_ms=step_ms,
        simulated_ms=simulated_ms,
        host_gap_ms=max(step_ms - simulated_ms, 0.0),  # an inaccurate simulation may take longer than the recording
        replay_error_percent=replay_error,
        imbalance=imbalance,
        bubble=bubble,
        sequence_correlation=job.factors.correlation,
        findings=findings_of(job, imbalance, bubble),
        validity=tuple(_validity(table, grid, replay_error)),
        workers=_workers(job),
    )


def _parallel_grid(grid: OperationGrid) -> ParallelGrid:
    """Return the sizes of the job.

    The table names one rank of each worker. A worker with tensor parallelism has k > 1 ranks, so that the distances of
    named ranks are multiples of k.
    """
    stages, data_ranks = grid.ranks.shape
    spacing = reduce(math.gcd, np.diff(np.unique(grid.ranks)).tolist(), 0)
    return ParallelGrid(
        data=data_ranks,
        pipeline=stages,
        ranks_per_worker=max(spacing, 1),  # no spacing if there is only one worker
        microbatches=grid.microbatches,
        chunks_per_stage=grid.chunks_per_stage,
        steps_recorded=grid.steps_recorded,
        steps_analysed=grid.starts_ms.shape[1],
    )


def _validity(table: OperationTable, grid: OperationGrid, error: float) -> Iterator[Validity]:
    """Yield warnings about the table; `error` is the mean error of the simulated step times, in percent."""
    analysed = grid.starts_ms.shape[1]
    if analysed < _FEW_STEPS:
        yield Validity(code="few-steps", message=f"{analysed} complete steps: amounts may be chance. Record more.")
    if analysed < grid.steps_recorded:
        yield Validity(
            code="different-steps",
            message=f"{grid.steps_recorded - analysed} of {grid.steps_recorded} steps lack operations or have others, "
            "and are left out.",
        )
    if error > _MOST_REPLAY_ERROR_PERCENT:
        yield Validity(
            code="unexplained",
            message=f"the simulated steps differ from the recorded ones by {error:.1f} %: operations depend on each "
            "other in a way that the table does not show. Savings are as uncertain.",
        )
    if table.unknown_kinds:
        yield Validity(
            code="unexplained", message=f"operations of unknown kinds are left out: {', '.join(table.unknown_kinds)}"
        )


def _workers(job: SimulatedJob) -> tuple[PipelineWorker, ...]:
    """Return all workers with their mean compute and waiting times per step; the longest compute comes first."""
    grid = job.grid
    computing = np.zeros(grid.ranks.shape)
    waiting = np.zeros(grid.ranks.shape)
    for stage in range(grid.stages):
        rows = grid.rows_of(*COMPUTE_KINDS, stage=stage)
        busy = grid.durations_ms[rows].sum(axis=0)
        span = grid.ends_ms[rows].max(axis=0) - grid.starts_ms[rows].min(axis=0)
        computing[stage] = busy.mean(axis=0)
        waiting[stage] = np.maximum(span - busy, 0.0).mean(axis=0)  # recorded computations may overlap slightly
    mean = float(computing.mean()) or 1.0
    workers = [
        PipelineWorker(
            rank=int(grid.ranks[stage, data_rank]),
            data_rank=data_rank,
            stage=stage,
            compute_ms=float(computing[stage, data_rank]),
            relative=float(computing[stage, data_rank]) / mean,
            waiting_ms=float(waiting[stage, data_rank]),
        )
        for stage, data_rank in np.ndindex(*grid.ranks.shape)
    ]
    return tuple(sorted(workers, key=lambda worker: -worker.compute_ms))
