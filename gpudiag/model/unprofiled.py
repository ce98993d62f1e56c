"""Parts of an analysis that are measured without the profiler: step times per rank, recording cost, compute rate."""

from __future__ import annotations

import msgspec

from gpudiag.model.quantities import Count, Flops, Milliseconds, Ordinal, Percentage, Rate


class UnprofiledRank(msgspec.Struct, frozen=True, kw_only=True):
    """Mean times of one rank's training thread over unprofiled steps, in milliseconds.

    Attributes:
        input_ms: fetching the batch.
        host_ms: from having the batch to having enqueued the step's work.
        lead_ms: by how much the thread then ran ahead of its device.
        loader_ms: the shortest step that the loader's worker processes can make batches for.
        reasons: why a value is missing, by its name.
    """

    rank: Ordinal
    step_ms: Milliseconds
    input_ms: Milliseconds | None = None
    host_ms: Milliseconds
    lead_ms: Milliseconds | None = None
    loader_ms: Milliseconds | None = None
    steps: Count
    reasons: dict[str, str] = {}


class RecordingCost(msgspec.Struct, frozen=True, kw_only=True):
    """Mean step of the slowest rank in ms: unprofiled, in the kernel-only trace, in the full trace; None if unknown."""

    unprofiled_ms: Milliseconds | None = None
    light_ms: Milliseconds | None = None
    full_ms: Milliseconds | None = None


class ComputeRate(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of a step over its unprofiled time, mean of all devices.

    Matrix products, convolutions and attention of forward and backward are counted in one step of the warm-up
    (`StepFlops` in the run's record).

    Attributes:
        flops_per_step: without recomputation of forward in backward.
        precision: input precision of most matrix operations.
        by_precision: FLOPs per step by input precision.
        unknown: operators whose work is unknown; if there are any, all figures are lower bounds.
        tflops_per_s: `flops_per_step` over the mean unprofiled step of the slowest rank.
        peak_tflops: the device's dense peak in that precision, by `peak_source`.
        mfu_percent: model FLOPs utilization: `tflops_per_s` of `peak_tflops` (A. Chowdhery et al., PaLM, 2022, app. B).
        reasons: why a value is missing, by its name.
    """

    flops_per_step: Flops | None = None
    recomputed_flops_per_step: Flops = 0
    precision: str | None = None
    by_precision: dict[str, Flops] = {}
    unknown: tuple[str, ...] = ()
    tflops_per_s: Rate | None = None
    peak_tflops: Rate | None = None
    peak_source: str = ""
    mfu_percent: Percentage | None = None
    reasons: dict[str, str] = {}
