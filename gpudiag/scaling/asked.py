"""What a person asks `gpudiag scale` for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gpudiag.scaling.conclude import Wanted

if TYPE_CHECKING:
    from pathlib import Path

    from gpudiag.model.scaling import Mode

Profile = Literal["auto", "first", "all", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which points, and how well each is to be known. Empty tuples and None leave the choice to gpudiag.

    Attributes:
        output: where results go; a directory with results of the same machine is gone on with.
        workloads, devices, strategies, batch_sizes, data, precisions, memory_formats: every combination is a point.
            In `strategies`, `nccl-no-p2p` is `nccl` without peer access. In strong mode a batch size is the whole
            job's.
        mode: `weak` keeps the samples per device, `strong` those of the whole step.
        pairs: also every pair of devices by itself.
        alone: also every GPU by itself, with the first workload.
        quick: less certain, one workload, for a look.
        accuracy: half the 95 % interval of a mean step time, as a share of it.
        seconds: a point's timed steps take this long at most.
        warmup_s: and its warm-up this long.
        budget_s: begin no point after this many seconds of measuring; what is most worth comes first.
        profile: which points are recorded for the waterfall: `auto` the largest of each strategy that exchanges, and
            their baselines; `first` those of the first strategy only.
        halve: halve the batch of a point that runs out of memory, until it fits.
        again: measure anew what failed before.
        job_options: fields of `gpudiag.model.job.Job` that hold for every point.
        measure_only: save the points and conclude nothing: that can be done elsewhere, while the GPUs do other work.
        wanted: what else to compute from the points.
    """

    output: Path
    workloads: tuple[str, ...] = ()
    framework: str = "torch"
    devices: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    data: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    memory_formats: tuple[str, ...] = ()
    mode: Mode = "weak"
    pairs: bool = False
    alone: bool = True
    quick: bool = False
    accuracy: float = 0.01
    seconds: float = 10.0
    warmup_s: float = 20.0
    budget_s: float | None = None
    profile: Profile = "auto"
    halve: bool = False
    again: bool = False
    measure_only: bool = False
    timeout_s: float = 120.0
    python: str = sys.executable
    command: tuple[str, ...] = ()
    job_options: dict[str, object] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)
