"""ComputeRate: the FLOPs of a step over its time without the profiler."""

from __future__ import annotations

import msgspec

from gpudiag.model.quantities import Flops, Percentage, Rate


class ComputeRate(msgspec.Struct, frozen=True, kw_only=True):
    """What a device computes in a step, counted in one step of the warm-up, over the timed step; means of all devices.

    Counted are matrix products, convolutions and attention, of forward and backward (`StepFlops` in the run's record).

    Attributes:
        flops_per_step: without what backward computes of forward again.
        recomputed_flops_per_step: that.
        precision: what matrix units were given for most of it.
        by_precision: FLOPs per step by what they were given.
        unknown: operators whose work is not known; where there are any, all figures are at least so much.
        tflops_per_s: `flops_per_step` over the mean timed step of the slowest rank.
        peak_tflops: the device's dense peak in that precision, by `peak_source`.
        mfu_percent: model FLOPs utilization: `tflops_per_s` of `peak_tflops` (A. Chowdhery et al., PaLM, 2022, app. B).
        reasons: of each missing value why it is missing.
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
