"""Define the result of an analysis: times, findings and their reliability. Its JSON is a contract."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpudiag.model.compute_rates import ComputeClass
from gpudiag.model.job import TriedChange
from gpudiag.model.parallelism import Parallelism
from gpudiag.model.quantities import (
    Bytes,
    Count,
    Devices,
    Difference,
    Microseconds,
    Milliseconds,
    Ordinal,
    Percentage,
    Rate,
)
from gpudiag.model.run import ComputeRate, InferenceRecord, RecordingCost, UnprofiledRank
from gpudiag.model.source_lines import SourceLine, SourceLocation

if TYPE_CHECKING:
    from gpudiag.model.frames import Frames

ANALYSIS_SCHEMA = "gpudiag/analysis/1"

#: The eight exclusive buckets (parts of a step's time), in the order in which they are drawn.
BUCKETS = ("compute", "communication_transfer", "communication_wait", "copy", "input", "sync", "launch", "idle")

#: Severities, worst first: `critical` if savings are at least 20 % of the step, `warning` if at least 5 %, else `info`.
SEVERITIES = ("critical", "warning", "info")
#: Every finding that a rule can make.
FINDING_CODES = (
    "input-bound",
    "straggler",
    "communication-bound",
    "launch-bound",
    "host-sync",
    "memory-allocation",
    "host-stall",
    "slow-copy",
    "slow-compute",
    "recompilation",
    "pipeline-bubble",
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
    "partial-coverage",
    "different-steps",
    "uneven-steps",
    "clock-skew",
    "repaired-input",
    "no-light-recording",
    "no-source-lines",
    "cannot-tell",
    "unexplained",
    "mixed-runs",
    "duplicate-ranks",
    "missing-device-activity",
    "lost-kernels",
    "thin-recording",
)

#: Warnings that limit all findings to low confidence: the last five codes.
UNTRUSTED_CODES = frozenset(VALIDITY_CODES[-5:])
#: Warnings that rule out the finding `compute-bound`, and conclusions about all steps.
NOT_ALL_SEEN_CODES = frozenset({"partial-coverage"})
#: Warnings that rule out conclusions about waits and communication between ranks.
NOT_ONE_JOB_CODES = frozenset({"mixed-runs", "missing-device-activity"})

StepUnit = Literal["step", "repeated-unit", "recording"]
#: Workload of a recorded process.
WorkloadKind = Literal["training", "inference", "unknown"]
#: Kind of device: `unread` is an accelerator whose activity no reader supports.
DeviceKind = Literal["gpu", "cpu", "unread"]
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with its cause, the savings of removing it alone, the confidence, and advice.

    Attributes:
        recoverable_ms_per_step: savings in the job's step time if only this cause is removed. None if unknown;
            `evidence["reason"]` then says why.
        instead: codes of findings that are alternatives to this one. Fixing one of them is enough: then something else
            limits the step, and fixing the others saves nothing.
        place: host location in the step, as far as known: operator before and after, file and line.
        source: the line of the user's source to change, if known.
        parts_ms: name → part of `recoverable_ms_per_step`, in milliseconds; the parts add up to it.
    """

    code: str
    severity: Severity
    ranks: tuple[Ordinal, ...] = ()
    cause: str | None = None
    recoverable_ms_per_step: Milliseconds | None = None
    recoverable_percent: Percentage | None = None
    confidence: Confidence = "medium"
    title: str = ""
    instead: tuple[str, ...] = ()
    place: str = ""
    source: SourceLocation | None = None
    parts_ms: dict[str, Milliseconds] = {}
    evidence: dict[str, Any] = {}
    advice: tuple[str, ...] = ()


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One fix in the recommended order of fixes.

    Attributes:
        code, ranks, cause: the finding that this fix removes.
        step_ms: the job's step time after all earlier fixes and this one.
        then: the bucket that the next fix shortens; `compute` after the last fix.
    """

    code: str
    ranks: tuple[Ordinal, ...] = ()
    cause: str | None = None
    step_ms: Milliseconds
    then: str


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a bucket (except compute) that has at least 5 % of the step on the limiting rank.

    The limiting rank is the rank that waits least for other ranks.

    Attributes:
        bucket: one of `BUCKETS`.
        ms: milliseconds per step on the limiting rank.
        by: codes of the findings and validity warnings that explain the bucket; empty if there are none.
        unexplained_ms: the rest of `ms`, which no finding or warning explains; 0 if little.
        note: a remark in words: what is unexplained, or which findings to fix first, so that removing the bucket saves
            time.
    """

    bucket: str
    ms: Milliseconds
    by: tuple[str, ...] = ()
    unexplained_ms: Milliseconds = 0.0
    note: str = ""


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust the figures less, with advice for recording again."""

    code: str
    message: str


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Step times in milliseconds. `reasons` maps the name of a missing value to the reason.

    Attributes:
        corrected_mean_ms: simulated step time without the profiler's overhead.
        corrected_interval_ms: 95 % interval of `corrected_mean_ms`, (low, high); None for a single step.
        unprofiled_times_ms: times of the steps whose mean is `unprofiled_mean_ms`, in order; empty if they were not
            kept.
        covered_percent: share of the recorded device work that the analysed steps represent (`Timeline.covered`).
        unit: content of each window: a training step, a unit that repeats within a larger range (a layer, a forward
            pass), or the whole recording.
    """

    analysed: Count
    mean_ms: Milliseconds
    median_ms: Milliseconds
    unprofiled_mean_ms: Milliseconds | None = None
    corrected_mean_ms: Milliseconds | None = None
    corrected_interval_ms: tuple[Milliseconds, Milliseconds] | None = None
    reasons: dict[str, str] = {}
    unprofiled_times_ms: tuple[Milliseconds, ...] = ()
    covered_percent: Percentage | None = None
    unit: StepUnit = "step"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device (or on CPU-only runs one training thread) with its mean step, divided into the eight buckets.

    `step_times_ms` are the lengths of the windows whose mean is `step_ms`; empty in analyses of early versions.
    """

    rank: Ordinal
    device: str
    step_ms: Milliseconds
    buckets_ms: dict[str, Milliseconds]
    hidden_communication_ms: Milliseconds
    name: str = ""
    step_times_ms: tuple[Milliseconds, ...] = ()


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """Alignment of one rank's clock to that of the first rank, from the common ends of collectives.

    `offset_ms` was added to the rank's times. `residual_ms` is the remaining median distance of the `matched` ends.
    """

    rank: Ordinal
    offset_ms: Difference
    residual_ms: Milliseconds
    matched: Count


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Time per step that `rank` waited in collectives for `on_rank`, the last to arrive."""

    rank: Ordinal
    on_rank: Ordinal
    ms_per_step: Milliseconds
    cause: str | None = None


class CollectiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation, group and size, over all ranks and analysed steps.

    `wait_us` is the median time to the last rank's arrival, `transfer_us` the median time from then to the common end.
    `busbw_gb_per_s` is defined as in nccl-tests.
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
    """Device time and number per step of the kernels (on CPUs: operators) of one name, averaged over devices."""

    name: str
    ms_per_step: Milliseconds
    per_step: Rate


class OperatorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Host time per step in framework operators of one name, on threads that launch work, averaged over devices.

    `own_ms_per_step` excludes nested operators; `per_step` is the number of calls.
    """

    name: str
    own_ms_per_step: Milliseconds
    per_step: Rate


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one module of the model, in ms per step on each of `Analysis.devices`, in that order.

    On a GPU, these are the times of the kernels, copies and memsets that the module's operators launched, without
    communication. On a CPU, they are the times of the module's operators. Times include nested modules, except `own_`
    times. Recomputation in backward counts as backward.

    Attributes:
        root: class of the outermost module (`Net#2` is the second of that class).
        path: path of the module in the outermost module, as in `named_modules()`.
        type: class of the module.
        calls: number of forward calls per step, mean over devices.
    """

    root: str
    path: str
    type: str
    calls: Rate
    forward_ms: tuple[Milliseconds, ...]
    backward_ms: tuple[Milliseconds, ...]
    own_forward_ms: tuple[Milliseconds, ...]
    own_backward_ms: tuple[Milliseconds, ...]


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """Times of modules in order of first calls, and times outside of modules; or the `reason` why there are none."""

    times: tuple[ModuleTime, ...] = ()
    outside_ms: tuple[Milliseconds, ...] = ()
    reason: str = ""


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """Contribution of one kernel, collective or copy to a bucket. The portions of a bucket sum to at most the bucket.

    Unlike the times in `KernelSummary`, portions are exclusive: only instants that belong to the bucket count, and each
    of n ops that run at the same instant gets 1/n of it.

    Attributes:
        bucket: one of `BUCKETS`.
        name: name of the kernel or copy; operation of a collective; `host` for host communication without a transfer.
            In bucket `idle` it is `unmarked-input` (between a step's mark and its first op, while the host recorded
            nothing) or `queued` (the next op was already launched).
        group, size_bytes: group and size of a collective, as in `CollectiveSummary`.
        per_step: number of ops that begin, per step and device.
        device_ms: milliseconds per step on each of `Analysis.devices`, in that order.
    """

    bucket: str
    name: str
    group: str = ""
    size_bytes: Bytes | None = None
    per_step: Rate = 0.0
    device_ms: tuple[Milliseconds, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The analysed files, and facts from the run record. If `input_only`, `samples_per_s` is the rate of the loader."""

    paths: tuple[str, ...] = ()
    title: str = ""
    workload: str | None = None
    strategy: str | None = None
    batch_size_per_device: Count | None = None
    samples_per_s: Rate | None = None
    input_only: bool = False
    software: dict[str, str] = {}
    hosts: tuple[str, ...] = ()


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of analysing one job's traces.

    Attributes:
        modules: times of modules; None without module marks (traces of other tools, of early versions, TensorFlow).
        compute: FLOPs and their rate; None if nothing was counted (traces alone, unknown model, TensorFlow).
        compute_classes: kernel classes that sum to bucket `compute` averaged over devices; longest first, `other` last.
        lines: host time by lines of the user's source, each line below its caller; empty unless gpudiag recorded it.
        tries: changes of `gpudiag profile --try`, with predicted and measured savings.
        inference: speed at which the run predicted a volume of voxels; None if the run trained.
        parallelism: grid of the ranks; None if the job divides only its batches.
        simulated_ranks: if the job is too large to simulate all ranks, the ranks that were simulated, from which
            savings, kernels, operators and modules come; else empty.
    """

    schema: str = ANALYSIS_SCHEMA
    framework: str
    workload: WorkloadKind = "unknown"
    device_kind: DeviceKind = "gpu"
    world_size: Devices
    ranks_present: tuple[Ordinal, ...]
    steps: Steps
    devices: tuple[Device, ...]
    clocks: tuple[RankClock, ...] = ()
    waits: tuple[Wait, ...] = ()
    findings: tuple[Finding, ...] = ()
    next: tuple[Fix, ...] = ()
    explained: tuple[Explained, ...] = ()
    validity: tuple[Validity, ...] = ()
    collectives: tuple[CollectiveSummary, ...] = ()
    kernels: tuple[KernelSummary, ...] = ()
    operators: tuple[OperatorSummary, ...] = ()
    portions: tuple[Portion, ...] = ()
    modules: Modules | None = None
    source: Source = Source()
    timed: tuple[UnprofiledRank, ...] | None = None
    recording: RecordingCost | None = None
    compute: ComputeRate | None = None
    compute_classes: tuple[ComputeClass, ...] = ()
    lines: tuple[SourceLine, ...] = ()
    tries: tuple[TriedChange, ...] = ()
    inference: InferenceRecord | None = None
    parallelism: Parallelism | None = None
    simulated_ranks: tuple[Ordinal, ...] = ()

    def __repr__(self) -> str:
        from gpudiag.model.frames import summary  # noqa: PLC0415 # only for printing

        return summary(self)

    def _repr_html_(self) -> str:
        """Return the report for a notebook's cell. The module is found by name, because reports depend on the model."""
        html: str = import_module("gpudiag.report.terminal.notebook").analysis_html(self)
        return html

    def frames(self) -> Frames:
        """Return the analysis as pandas frames, with one row per bucket, step, wait and so on. Imports pandas."""
        from gpudiag.model.frames import analysis_frames  # noqa: PLC0415 # only for tables

        return analysis_frames(self)
