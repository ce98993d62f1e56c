"""RunRecord: what ran, on what, and how long its steps took without the profiler (`run.json`, `gpudiag/run/1`)."""

from __future__ import annotations

from typing import Literal

from gpudiag.model.quantities import Bytes, Count, Devices, Flops, Milliseconds, Ordinal, Rate, Seconds
from gpudiag.model.structs import msgspec

RUN_SCHEMA = "gpudiag/run/1"
RANK_SCHEMA = "gpudiag/rank/1"

RunStatus = Literal["complete", "failed", "interrupted"]


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of consecutive steps in milliseconds, each from one step's start to the next, device work included."""

    step_ms: tuple[Milliseconds, ...]
    mean_ms: Milliseconds
    median_ms: Milliseconds
    standard_error_ms: Milliseconds
    jitter_ms: Milliseconds
    """1.4826 times the median absolute deviation."""


class LoaderPace(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker processes of a DataLoader made while steps were timed.

    Attributes:
        workers: those that made any.
        batches: how many all of them made.
        batch_ms: how long one of them took for a batch, in the mean; what it waited until it was to make one is not in
            it.
    """

    workers: Devices
    batches: Count
    batch_ms: Milliseconds


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel counted in a timed step, in the mean, for the threads that launch its work.

    Those are the thread that trains and, beside a GPU, autograd's own. It tells a host that lost its core to other
    processes from one that is slow by itself.

    Attributes:
        involuntary_switches: how often they were taken off a core although they could have gone on.
        run_queue_wait_ms: how long they were ready to run and had no core.
        cpu_ms: how long they had one.
    """

    involuntary_switches: Rate
    run_queue_wait_ms: Milliseconds
    cpu_ms: Milliseconds


class UnprofiledSteps(msgspec.Struct, frozen=True, kw_only=True):
    """What the training thread did in the steps of `RankRecord.unprofiled`, in milliseconds, one value for each step.

    Attributes:
        input_ms: fetching the batch; None where the framework fetches it within the step's own work (Keras).
        host_ms: from having the batch to having put the step's work into the queue.
        lead_ms: by how much the thread was then ahead of its device: how long that still took to finish the step. None
            where there is no device beside the thread (CPUs), or none whose progress can be told (TensorFlow).
        idle_host_ms: `host_ms` of the steps just before, of which the first found its device idle and its queue empty:
            there a thread waits for no room. Empty where `lead_ms` is None.
        loader: of PyTorch's loaders with worker processes that were forked; None where none was seen.
        scheduling: one value for all steps; None where the kernel does not tell (not Linux).
    """

    input_ms: tuple[Milliseconds, ...] | None = None
    host_ms: tuple[Milliseconds, ...]
    lead_ms: tuple[Milliseconds, ...] | None = None
    idle_host_ms: tuple[Milliseconds, ...] = ()
    loader: LoaderPace | None = None
    scheduling: Scheduling | None = None


class StepFlops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one step on one device: matrix products, convolutions, attention; a multiplication
    and an addition are two.

    Attributes:
        by_precision: of forward and backward, by what matrix units were given: `fp32`, `tf32`, `bf16`, `fp16` …
        recomputed: what backward computed of forward again (activation checkpointing); not in `by_precision`.
        unknown: operators that ran and that multiply matrices, or may, by which nobody knows how much.
        reason: why nothing was counted; then there is nothing else.
    """

    by_precision: dict[str, Flops] = msgspec.field(default_factory=dict)
    recomputed: Flops = 0
    unknown: tuple[str, ...] = ()
    reason: str = ""


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """How long the run took to settle, found from the step times (or told: `automatic` is False)."""

    steps: Count
    seconds: Seconds
    automatic: bool
    settled: bool
    """False when the step times were still falling when the limit on warm-up was reached."""


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says of itself and of its steps; saved as `ranks/rank<r>.json` while the run goes on.

    `device` and `device_name` are empty before the first step.

    Attributes:
        run_id: the same on all ranks of a run, once they have met; "" before.
        unprofiled: the timed steps, without the profiler; `timed` is what the host did in them.
        light: steps while they were recorded without operators; `light_trace` is that recording.
        profiled: steps while they were recorded with operators; `trace` is that recording.
        trace, light_trace: relative to the run directory; None where there is none.
        flops: of one step of the warm-up; None where none was looked at.
        unmarked: why the full recording has no marks of modules; empty where it has, and of a framework without such.
        notes: what went wrong in recording and did not end the run, by code: `no-light-recording`,
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
    """The trained model: how many parameters, and the gradient sizes in bytes in the order of exchange."""

    parameters: Count
    gradient_bytes: Bytes
    gradient_sizes: tuple[Bytes, ...] = ()


class StepsFound(msgspec.Struct, frozen=True, kw_only=True):
    """How steps were found in a program that does not mark them (`gpudiag profile -- COMMAND`).

    Attributes:
        by: `optimizer`: each ends where an optimizer's step does. `time`: none was seen to step, so that some seconds
            were recorded and the steps are those that the trace shows.
        optimizer: the class of the optimizer that ends a step.
        optimizers: how many step by themselves, this one included.
        calls_per_step: calls of all of them in a step; None where no step was seen to end.
        closure: a step is one evaluation of the optimizer's closure (L-BFGS), of which each call makes several.
    """

    by: Literal["optimizer", "time"]
    optimizer: str | None = None
    optimizers: Count = 0
    calls_per_step: float | None = None
    closure: bool = False


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled run, as saved in the run directory. `steps_found`: None where the program marked its steps."""

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
    status: RunStatus
    error: str | None = None
    run_id: str = ""
