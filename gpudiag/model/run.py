"""Define the records of a run: its job and step times (`run.json`), and its speed of inference."""

from __future__ import annotations

import math
from typing import Literal, get_args

from gpudiag.model.quantities import Bytes, Count, Devices, Flops, Milliseconds, Ordinal, Percentage, Rate, Seconds
from gpudiag.model.structs import msgspec

#: Name of the strategy in records if a user-defined function communicates gradients.
OWN_STRATEGY = "own"

RUN_SCHEMA = "gpudiag/run/1"
RANK_SCHEMA = "gpudiag/rank/1"
INFERENCE_SCHEMA = "gpudiag/inference/1"
INFERENCE_FILE = "inference.json"

RunStatus = Literal["complete", "failed", "interrupted"]

PipelineSchedule = Literal["gpipe", "1f1b", "interleaved"]
SCHEDULES: tuple[PipelineSchedule, ...] = get_args(PipelineSchedule)
#: Dimensions of parallelism, outermost first. Ranks with successive numbers differ in the innermost dimension.
DIMENSIONS = ("pp", "dp", "ep", "cp", "tp")


class ParallelLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the dimensions of parallelism; their product is the number of processes.

    Attributes:
        pp: number of pipeline stages; if the schedule is interleaved, number of processes with several stages each.
        dp: number of replicas of the model, which train on different batches.
        ep: number of processes that divide the experts of each layer among themselves, and train on different batches.
        cp: number of parts into which each sequence is split.
        tp: number of parts into which each layer's matrices are split.
        microbatches: number of parts of a replica's batch that follow each other through the pipeline.
        schedule: order of the forward and backward passes of microbatches on each stage.
    """

    pp: Devices = 1
    dp: Devices = 1
    ep: Devices = 1
    cp: Devices = 1
    tp: Devices = 1
    microbatches: Count = 1
    schedule: PipelineSchedule = "1f1b"

    @property
    def sizes(self) -> dict[str, int]:
        """Return dimension → size, in the order of the mesh."""
        return {name: getattr(self, name) for name in DIMENSIONS}

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return math.prod(self.sizes.values())

    def __str__(self) -> str:
        """Return the layout in the notation of the option `--parallel`."""
        words = [f"{name}={size}" for name, size in self.sizes.items() if size > 1]
        if self.pp > 1:
            words += [f"microbatches={self.microbatches}", f"schedule={self.schedule}"]
        return ",".join(words) or "dp=1"


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of consecutive steps in ms, each from its start to the start of the next step, device work included.

    `jitter_ms` is 1.4826 times the median absolute deviation.
    """

    step_ms: tuple[Milliseconds, ...]
    mean_ms: Milliseconds
    median_ms: Milliseconds
    standard_error_ms: Milliseconds
    jitter_ms: Milliseconds


class LoaderPace(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a DataLoader's worker processes during the unprofiled steps.

    Attributes:
        workers: number of processes that made batches.
        batches: number of batches of all processes.
        batch_ms: mean time in which one process makes a batch, without waiting for requests.
    """

    workers: Devices
    batches: Count
    batch_ms: Milliseconds


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """The operating system's counters per unprofiled step, summed over the threads that launch the step's work.

    Launching threads are the training thread and, on a GPU, autograd's thread. The counters distinguish a host that
    lost its core to other processes from a slow host.

    Attributes:
        involuntary_switches: number of times that a thread was taken off a core while able to run.
        run_queue_wait_ms: time in which a thread was ready to run but had no core.
        cpu_ms: time on a core.
    """

    involuntary_switches: Rate
    run_queue_wait_ms: Milliseconds
    cpu_ms: Milliseconds


class UnprofiledSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the training thread in the steps of `RankRecord.unprofiled`, in milliseconds, one value per step.

    Attributes:
        input_ms: time of fetching the batch; None if the framework fetches batches within the step's work (Keras).
        host_ms: time from having the batch until the step's work is enqueued.
        lead_ms: time by which the host runs ahead: from the end of `host_ms` until the device has finished the step.
            None without a device (CPUs), or if the device's progress is unknown (TensorFlow).
        idle_host_ms: `host_ms` of the steps directly before, which began with an idle device and an empty launch queue,
            so that no thread waited for a full queue. Empty if `lead_ms` is None.
        loader: work of PyTorch's DataLoaders with forked worker processes; None if there were none.
        scheduling: the operating system's counters; None if the system does not report them (not Linux).
    """

    input_ms: tuple[Milliseconds, ...] | None = None
    host_ms: tuple[Milliseconds, ...]
    lead_ms: tuple[Milliseconds, ...] | None = None
    idle_host_ms: tuple[Milliseconds, ...] = ()
    loader: LoaderPace | None = None
    scheduling: Scheduling | None = None


class StepFlops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one step on one device: matrix products, convolutions, attention.

    A multiplication and an addition count as two operations.

    Attributes:
        by_precision: input precision (`fp32`, `tf32`, `bf16`, `fp16`, …) → operations of forward and backward.
        recomputed: operations that backward recomputes (activation checkpointing); not in `by_precision`.
        unknown: names of operators that may multiply matrices of unknown sizes.
        reason: the reason why nothing was counted; then all other fields are empty.
    """

    by_precision: dict[str, Flops] = msgspec.field(default_factory=dict)
    recomputed: Flops = 0
    unknown: tuple[str, ...] = ()
    reason: str = ""


class UnprofiledRank(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times of one rank's training thread over unprofiled steps, in milliseconds.

    Attributes:
        input_ms: time of fetching the batch.
        host_ms: time from having the batch until the step's work is enqueued.
        lead_ms: time by which the thread was ahead of its device at the end of `host_ms`.
        loader_ms: time in which the loader's worker processes make the batch of one step.
        reasons: name of a missing value → reason.
    """

    rank: Ordinal
    step_ms: Milliseconds
    input_ms: Milliseconds | None = None
    host_ms: Milliseconds
    lead_ms: Milliseconds | None = None
    loader_ms: Milliseconds | None = None
    steps: Count
    reasons: dict[str, str] = msgspec.field(default_factory=dict)


class RecordingCost(msgspec.Struct, frozen=True, kw_only=True):
    """Mean step time of the slowest rank: unprofiled, with the kernel-only trace (`light`), with the full trace."""

    unprofiled_ms: Milliseconds | None = None
    light_ms: Milliseconds | None = None
    full_ms: Milliseconds | None = None


class ComputeRate(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of a step, mean over devices, and their rate in unprofiled steps.

    Matrix products, convolutions and attention of forward and backward are counted in one step of the warm-up
    (`StepFlops` in the run's record).

    Attributes:
        flops_per_step: FLOPs without recomputation of forward in backward.
        precision: input precision of most matrix operations.
        by_precision: FLOPs per step by input precision.
        unknown: operators whose work is unknown; if there are any, all figures are lower bounds.
        tflops_per_s: `flops_per_step` divided by the mean unprofiled step time of the slowest rank, in TFLOP/s.
        peak_tflops: the device's dense peak in `precision`, in TFLOP/s, according to `peak_source`.
        mfu_percent: model FLOPs utilization: `tflops_per_s` / `peak_tflops` (A. Chowdhery et al., PaLM, 2022, app. B).
        reasons: name of a missing value → reason.
    """

    flops_per_step: Flops | None = None
    recomputed_flops_per_step: Flops = 0
    precision: str | None = None
    by_precision: dict[str, Flops] = msgspec.field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    tflops_per_s: Rate | None = None
    peak_tflops: Rate | None = None
    peak_source: str = ""
    mfu_percent: Percentage | None = None
    reasons: dict[str, str] = msgspec.field(default_factory=dict)


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """Length of the warm-up. If `automatic`, it was determined from step times, else the user gave it.

    `settled` is False if step times still decreased at the end of the longest allowed warm-up.
    """

    steps: Count
    seconds: Seconds
    automatic: bool
    settled: bool


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one rank and its steps; saved as `ranks/rank<r>.json` during the run.

    `device` and `device_name` are empty before the first step.

    Attributes:
        run_id: identifier that all ranks of a run share; "" before the ranks have met.
        unprofiled: step times without the profiler. `timed` has the host's times in these steps.
        light: step times while the kernel-only trace `light_trace` was recorded.
        profiled: step times while the full trace `trace` was recorded.
        trace, light_trace: paths relative to the run directory; None if not recorded.
        flops: operations of one step of the warm-up; None if not counted.
        unmarked: the reason why the full trace has no marks of modules; empty if it has marks, or if the framework has
            no modules.
        notes: code → message of recording problems that did not end the run: `no-light-recording`,
            `missing-device-activity`, `own-profiler`.
    """

    schema: str = RANK_SCHEMA
    rank: Ordinal
    local_rank: Ordinal
    host: str
    pid: Count
    device: str
    device_name: str
    warmup: Warmup | None = None
    unprofiled: StepTimes | None = None
    timed: UnprofiledSteps | None = None
    light: StepTimes | None = None
    profiled: StepTimes | None = None
    trace: str | None = None
    light_trace: str | None = None
    flops: StepFlops | None = None
    unmarked: str = ""
    notes: dict[str, str] = msgspec.field(default_factory=dict)
    error: str | None = None
    run_id: str = ""


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The trained model. `gradient_sizes` has the bytes of each gradient in the order of communication."""

    parameters: Count
    gradient_bytes: Bytes
    gradient_sizes: tuple[Bytes, ...] = ()


class StepsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Steps inferred in a program that does not mark them (`gpudiag profile -- COMMAND`).

    Attributes:
        by: `optimizer` if each step ends with an optimizer's step. `time` if no optimizer stepped, so that some seconds
            were recorded, and the steps are inferred from the trace.
        optimizer: class of the optimizer that ends a step.
        optimizers: number of optimizers that step separately, including `optimizer`.
        calls_per_step: number of calls of all optimizers in a step; None if no step ended.
        closure: whether a step is one evaluation of the optimizer's closure (L-BFGS: several evaluations per call).
    """

    by: Literal["optimizer", "time"]
    optimizer: str | None = None
    optimizers: Count = 0
    calls_per_step: float | None = None
    closure: bool = False


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A profiled run, as saved in the run directory.

    Attributes:
        steps_found: inferred steps; None if the program marked its steps.
        parallel: division of a built-in workload among processes (`--parallel`); None if each trained the whole model.
    """

    schema: str = RUN_SCHEMA
    created: str
    command: tuple[str, ...]
    workload: str
    framework: str
    strategy: str
    world_size: Devices
    nodes: Devices
    batch_size_per_device: Count | None
    options: dict[str, str] = msgspec.field(default_factory=dict)
    model: ModelRecord | None = None
    software: dict[str, str] = msgspec.field(default_factory=dict)
    ranks: tuple[RankRecord, ...] = ()
    steps_found: StepsFound | None = None
    parallel: ParallelLayout | None = None
    status: RunStatus
    error: str | None = None
    run_id: str = ""


class RankInference(msgspec.Struct, frozen=True, kw_only=True):
    """A process's share of the volume. `seconds` is the time from the common start until its last block was on disk."""

    rank: Ordinal
    blocks: Count
    voxels: Count
    seconds: Seconds


class InferenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Speed of one volume predicted in blocks by all processes, without the profiler (`inference.json`).

    Attributes:
        volume: number of voxels along z, y and x.
        written: maximum number of voxels that a block writes, along z, y and x.
        seen: number of voxels that the network reads per block, along z, y and x: `written` and its surroundings.
        voxels: number of voxels of the volume, each of which is written once.
        predicted: number of voxels that the network processed; surroundings count each time.
        channels: number of values written per voxel, one byte each.
        seconds: time from the common start until every process had its last block on disk.
        mvox_per_s: `voxels` / `seconds` / 1e6.
    """

    schema: str = INFERENCE_SCHEMA
    volume: tuple[Count, Count, Count]
    written: tuple[Count, Count, Count]
    seen: tuple[Count, Count, Count]
    blocks: Count
    voxels: Count
    predicted: Count
    channels: Count
    seconds: Seconds
    mvox_per_s: Rate
    ranks: tuple[RankInference, ...]
