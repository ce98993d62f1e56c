"""Define the arguments of `gpudiag scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from gpudiag.model.benchmarks.scaling import Mode
from gpudiag.model.job import RunOptions

Recorded = Literal["auto", "first", "all", "none"]
RECORDED: tuple[Recorded, ...] = ("auto", "first", "all", "none")


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The network between machines: GB/s (1e9 bytes) per machine and direction, and microseconds per message."""

    gb_per_s: float
    latency_us: float = 5.0

    def describe(self) -> str:
        """Return the network in words."""
        return f"{self.gb_per_s:g} GB/s per machine, {self.latency_us:g} µs"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Results to compute in addition to the measured points.

    Attributes:
        network: network between machines, for forecasts.
        samples, iterations, voxels: amounts of work whose duration is estimated.
        voxels_per_sample: workload → voxels that a sample writes, in place of the counted number.
    """

    network: Network | None = None
    samples: float | None = None
    iterations: float | None = None
    voxels: float | None = None
    voxels_per_sample: dict[str, int] = {}


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The points to measure, and their accuracy. Empty tuples and None leave the choice to gpudiag.

    Attributes:
        run: options of every point; options that differ between points are unset.
        output: directory of results; results of the same machine are continued.
        workloads, devices, strategies, batch_sizes, data, precisions, memory_formats, compiled: every combination is a
            point. In `strategies`, `nccl-no-p2p` is `nccl` without peer access. In strong mode a batch size applies to
            the whole job.
        mode: `weak` keeps the samples per device constant, `strong` keeps the samples of the whole step constant.
        pairs: also measure every pair of devices.
        alone: also measure every GPU alone, with the first workload.
        starts: number of starts of each point's job. A baseline (one device, same settings) is started once more if its
            figures are not yet reliable.
        accuracy: required half of the 95 % interval of a mean step time, as a share of the mean.
        seconds: longest measurement of a point.
        warmup_s: longest warm-up of a point.
        budget_s: begin no point after this many seconds of measuring; the most useful points come first.
        recorded: points to record for the waterfall. `auto`: the point with the most devices of each strategy that
            communicates, and its baseline. `first`: these two points of the first strategy. `all`, `none`: every
            point, no point.
        halve: halve the batch of a point that runs out of memory, until it fits.
        again: measure points again that failed before.
        measure_only: save the points without conclusions, which another machine can derive later.
        wanted: results to compute in addition.
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
