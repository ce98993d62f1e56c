"""What a person asks `gpudiag scale` for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpudiag.model.benchmarks.scaling import Mode
from gpudiag.model.job import RunOptions

Recorded = Literal["auto", "first", "all", "none"]
RECORDED: tuple[Recorded, ...] = ("auto", "first", "all", "none")


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """What joins machines: GB/s (1e9 bytes) per machine and direction, and microseconds per message."""

    gb_per_s: float
    latency_us: float = 5.0

    def describe(self) -> str:
        """In words."""
        return f"{self.gb_per_s:g} GB/s per machine, {self.latency_us:g} µs"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What else is to be computed, beside what always is.

    Attributes:
        network: forecasts over machines that it joins.
        samples, iterations, voxels: how long so many take.
        voxels_per_sample: voxels that a sample writes, by workload, in place of those that were counted.
    """

    network: Network | None = None
    samples: float | None = None
    iterations: float | None = None
    voxels: float | None = None
    voxels_per_sample: dict[str, int] = {}


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which points, and how well each is to be known. Empty tuples and None leave the choice to gpudiag.

    Attributes:
        run: what holds for every point; what a point varies is left open there.
        output: where results go; a directory with results of the same machine is gone on with.
        workloads, devices, strategies, batch_sizes, data, precisions, memory_formats, compiled: every combination
            is a point. In `strategies`, `nccl-no-p2p` is `nccl` without peer access. In strong mode a batch size is the
            whole job's.
        mode: `weak` keeps the samples per device, `strong` those of the whole step.
        pairs: also every pair of devices by itself.
        alone: also every GPU by itself, with the first workload.
        starts: how often each point's job is started; a baseline that is in doubt then is started once more.
        accuracy: half the 95 % interval of a mean step time, as a share of it.
        seconds: a point's timed steps take this long at most.
        warmup_s: and its warm-up this long.
        budget_s: begin no point after this many seconds of measuring; what is most worth comes first.
        recorded: which points are recorded for the waterfall: `auto` the largest of each strategy that exchanges, and
            their baselines; `first` those of the first strategy only.
        halve: halve the batch of a point that runs out of memory, until it fits.
        again: measure anew what failed before.
        measure_only: save the points and conclude nothing: that can be done elsewhere, while the GPUs do other work.
        wanted: what else to compute from the points.
    """

    run: RunOptions
    output: Path
    workloads: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    data: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    memory_formats: tuple[str, ...] = ()
    compiled: tuple[bool, ...] = ()
    mode: Mode = "weak"
    pairs: bool = False
    alone: bool = True
    starts: int = 2
    accuracy: float = 0.01
    seconds: float = 10.0
    warmup_s: float = 20.0
    budget_s: float | None = None
    recorded: Recorded = "auto"
    halve: bool = False
    again: bool = False
    measure_only: bool = False
    wanted: Wanted = Wanted()
