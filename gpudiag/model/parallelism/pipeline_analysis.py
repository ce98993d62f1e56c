"""Define the analysis of a pipeline-parallel job. Its JSON is a contract (`gpudiag/pipeline/1`)."""

from __future__ import annotations

import msgspec

from gpudiag.model.analysis import Finding, Validity
from gpudiag.model.parallelism import Imbalance
from gpudiag.model.quantities import Count, Devices, Milliseconds, Ordinal, Percentage, Rate

PIPELINE_SCHEMA = "gpudiag/pipeline/1"


class ParallelGrid(msgspec.Struct, frozen=True, kw_only=True):
    """The grid of workers, and the schedule of a step.

    Attributes:
        data, pipeline: data-parallel and pipeline-parallel size.
        ranks_per_worker: spacing of the global ranks; above 1, each worker is a group of processes (tensor or
            context parallel), of which one was recorded.
        microbatches: number of microbatches per step and data-parallel rank.
        chunks_per_stage: parts of the model on each stage; above 1 if the schedule is interleaved.
        steps_recorded, steps_analysed: steps in the table, and steps that are complete.
    """

    data: Devices
    pipeline: Devices
    ranks_per_worker: Count = 1
    microbatches: Count
    chunks_per_stage: Count = 1
    steps_recorded: Count
    steps_analysed: Count


class ScheduleBubble(msgspec.Struct, frozen=True, kw_only=True):
    """Idle time of the ideal pipeline, which only the schedule causes.

    Attributes:
        percent: share of the time from the first to the last computation in which a stage idles, mean of stages.
        theoretical_percent: (p-1)/(v·m+p-1) for p stages, m microbatches and v chunks per stage.
        ms: idle time per step.
    """

    percent: Percentage
    theoretical_percent: Percentage
    ms: Milliseconds


class PipelineWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's position in the grid, and its computation per step.

    Attributes:
        rank, data_rank, stage: global rank, data-parallel rank and pipeline stage.
        compute_ms: computation per step, mean of steps.
        relative: `compute_ms` / mean `compute_ms` of all workers.
        waiting_ms: time per step between its first and last computation in which the worker does not compute.
    """

    rank: Ordinal
    data_rank: Ordinal
    stage: Ordinal
    compute_ms: Milliseconds
    relative: Rate
    waiting_ms: Milliseconds


class PipelineAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of analysing a table of operations.

    Attributes:
        source: the file.
        step_ms: recorded step time, mean over the analysed steps.
        simulated_ms: step time of the simulation without host gaps, to which slowdowns and savings refer.
        host_gap_ms: `step_ms - simulated_ms`, at least 0: time per step in which the critical path neither executes
            nor awaits a recorded operation.
        replay_error_percent: mean absolute difference between recorded step times and step times that are simulated
            with recorded durations of operations and typical host gaps.
        sequence_correlation: correlation between forward and backward durations of the same microbatch, without the
            differences between workers; None if it cannot be computed.
        workers: all workers, slowest first.
    """

    schema: str = PIPELINE_SCHEMA
    source: str
    grid: ParallelGrid
    step_ms: Milliseconds
    simulated_ms: Milliseconds
    host_gap_ms: Milliseconds
    replay_error_percent: Rate
    imbalance: Imbalance
    bubble: ScheduleBubble | None = None
    sequence_correlation: float | None = None
    findings: tuple[Finding, ...] = ()
    validity: tuple[Validity, ...] = ()
    workers: tuple[PipelineWorker, ...] = ()
