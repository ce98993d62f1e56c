"""Analysis: where each step's time went, why, and how far to trust it. Its JSON is a contract
(`gpudiag/analysis/1`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gpudiag.model.quantities import Bytes, Count, Devices, Microseconds, Milliseconds, Ordinal, Rate

ANALYSIS_SCHEMA = "gpudiag/analysis/1"

#: The eight exclusive buckets, in the order in which they are drawn.
BUCKETS = (
    "compute",
    "communication_transfer",
    "communication_wait",
    "copy",
    "input",
    "sync",
    "launch",
    "idle",
)

#: Worst first: critical from 20 % of the step recoverable, warning from 5 %.
SEVERITIES = ("critical", "warning", "info")

#: Every finding that a rule can make.
FINDING_CODES = (
    "input-bound",
    "straggler",
    "communication-bound",
    "launch-bound",
    "host-sync",
    "slow-copy",
    "compute-bound",
    "clock-mismatch",
    "throttled",
    "degraded-link",
    "no-peer-access",
    "shared-uplink",
    "foreign-process",
    "peer-slower-than-host",
    "corrupt-transfer",
)

#: Every reason to trust an analysis less.
VALIDITY_CODES = (
    "profiler-overhead",
    "dropped-events",
    "missing-ranks",
    "no-step-marks",
    "few-steps",
    "different-steps",
    "uneven-steps",
    "clock-skew",
    "repaired-input",
    "no-light-recording",
    "cannot-tell",
    "mixed-runs",
    "duplicate-ranks",
    "missing-device-activity",
    "lost-kernels",
    "thin-recording",
)

#: Those that leave no finding above low confidence.
UNTRUSTED_CODES = frozenset(VALIDITY_CODES[-5:])
#: Those with which nothing can be said of what happens between ranks.
NOT_ONE_JOB_CODES = frozenset({"mixed-runs", "missing-device-activity"})

Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, what removing it alone would gain, how sure we are, and what to do.

    `recoverable_ms_per_step` is the fall in the job's step time if only this cause went away; None where that cannot
    be known, and then `evidence["reason"]` says why.
    """

    code: str
    severity: Severity
    ranks: tuple[Ordinal, ...] = ()
    cause: str | None = None
    recoverable_ms_per_step: Milliseconds | None = None
    recoverable_percent: Rate | None = None
    confidence: Confidence = "medium"
    title: str = ""
    evidence: dict[str, Any] = {}
    advice: tuple[str, ...] = ()


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust the numbers less, and what to record instead. Not a finding about the job."""

    code: str
    message: str


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Step times in milliseconds; `reasons` says of each missing value why it is missing.

    `corrected_interval_ms` is where `corrected_mean_ms` lies at 95 %: (low, high); None of a single step.
    `unprofiled_times_ms` are the single steps behind `unprofiled_mean_ms`, in order; empty where they were not kept.
    """

    analysed: Count
    mean_ms: Milliseconds
    median_ms: Milliseconds
    unprofiled_mean_ms: Milliseconds | None = None
    corrected_mean_ms: Milliseconds | None = None
    corrected_interval_ms: tuple[Milliseconds, Milliseconds] | None = None
    reasons: dict[str, str] = {}
    unprofiled_times_ms: tuple[Milliseconds, ...] = ()


class TimedRank(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's training thread did in the steps without profiler, as means in milliseconds over `steps` of them.

    Attributes:
        step_ms: the step.
        input_ms: fetching the batch.
        host_ms: from having the batch to having put the step's work into the queue.
        lead_ms: by how much the thread was then ahead of its device.
        reasons: of each missing value why it is missing.
    """

    rank: Ordinal
    step_ms: Milliseconds
    input_ms: Milliseconds | None = None
    host_ms: Milliseconds
    lead_ms: Milliseconds | None = None
    steps: Count
    reasons: dict[str, str] = {}


class RecordingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of the slowest rank in ms: timed, recorded lightly, recorded with operators; None if it was not."""

    unprofiled_ms: Milliseconds | None = None
    light_ms: Milliseconds | None = None
    full_ms: Milliseconds | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device (or, on CPU-only runs, one training thread) and its mean step, cut into the eight buckets.

    `step_times_ms` are the single windows behind `step_ms`, in order; empty in analyses from before they were kept.
    """

    rank: Ordinal
    device: str
    step_ms: Milliseconds
    buckets_ms: dict[str, Milliseconds]
    hidden_communication_ms: Milliseconds
    name: str = ""
    step_times_ms: tuple[Milliseconds, ...] = ()


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """How long `rank` waited in collectives for `on_rank`, the last to arrive, per step."""

    rank: Ordinal
    on_rank: Ordinal
    ms_per_step: Milliseconds
    cause: str | None = None


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation, group and size, over all ranks and analysed steps.

    `transfer_us` is the median time from the last arrival to the common end; `busbw_gb_per_s` is of that time, by the
    nccl-tests convention, None where the size was not recorded.
    """

    operation: str
    group: str
    ranks: Count
    size_bytes: Bytes | None
    per_step: Rate
    transfer_us: Microseconds
    wait_us: Microseconds
    busbw_gb_per_s: Rate | None = None
    probe_busbw_gb_per_s: Rate | None = None


class KernelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel by name: its device time per step, averaged over ranks."""

    name: str
    ms_per_step: Milliseconds
    per_step: Rate


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """What one kernel, collective or copy contributed to a bucket. The portions of a bucket sum to at most the bucket.

    Unlike the times in `KernelSummary`, these are exclusive: only instants that count for the bucket, and where n ops
    run at such an instant, each gets 1/n of it.

    Attributes:
        bucket: one of `BUCKETS`.
        name: the kernel's or copy's own name; a collective's operation; `host` for what the host itself does for an
            exchange beside no transfer; of `idle`, `unmarked-input` (between a step's
            mark and its first op, while the host recorded nothing) or `queued` (the next op had been launched already).
        group, size_bytes: of a collective, as in `CollectiveSummary`.
        per_step: how many began per step and device.
        device_ms: milliseconds per step on each of `Analysis.devices`, in that order.
    """

    bucket: str
    name: str
    group: str = ""
    size_bytes: Bytes | None = None
    per_step: Rate = 0.0
    device_ms: tuple[Milliseconds, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What was analysed: the files, and from the run record, if there was one, what ran."""

    paths: tuple[str, ...] = ()
    title: str = ""
    workload: str | None = None
    strategy: str | None = None
    batch_size_per_device: Count | None = None
    samples_per_s: Rate | None = None
    software: dict[str, str] = {}


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of analysing one job's traces."""

    schema: str = ANALYSIS_SCHEMA
    framework: str
    world_size: Devices
    ranks_present: tuple[Ordinal, ...]
    steps: Steps
    devices: tuple[Device, ...]
    waits: tuple[Wait, ...] = ()
    findings: tuple[Finding, ...] = ()
    validity: tuple[Validity, ...] = ()
    collectives: tuple[CollectiveSummary, ...] = ()
    kernels: tuple[KernelSummary, ...] = ()
    portions: tuple[Portion, ...] = ()
    source: Source = Source()
    timed: tuple[TimedRank, ...] | None = None
    recording: RecordingCost | None = None
