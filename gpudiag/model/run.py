"""RunRecord: what ran, on what, and how long its steps took without the profiler (`run.json`, `gpudiag/run/1`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Bytes, Count, Devices, Milliseconds, Ordinal, Seconds

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


class Warmup(msgspec.Struct, frozen=True, kw_only=True):
    """How long the run took to settle, found from the step times (or told: `automatic` is False)."""

    steps: Count
    seconds: Seconds
    automatic: bool
    settled: bool
    """False when the step times were still falling when the limit on warm-up was reached."""


class RankRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank says of itself and of its steps; saved as `ranks/rank<r>.json` while the run goes on.

    `trace` is relative to the run directory. `device` and `device_name` are empty before the first step.
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
    profiled: StepTimes | None = None
    trace: str | None = None
    error: str | None = None


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The trained model: how many parameters, and the gradient sizes in bytes in the order of exchange."""

    parameters: Count
    gradient_bytes: Bytes
    gradient_sizes: tuple[Bytes, ...] = ()


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled run, as saved in the run directory."""

    schema: str = RUN_SCHEMA
    created: str
    command: tuple[str, ...]
    workload: str
    framework: str
    strategy: str
    world_size: Devices
    nodes: Devices
    batch_size_per_device: Count | None
    options: dict[str, str] = {}
    model: ModelRecord | None = None
    software: dict[str, str] = {}
    ranks: tuple[RankRecord, ...] = ()
    status: RunStatus
    error: str | None = None
