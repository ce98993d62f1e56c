"""Analysis: where each step's time went, why, and how far to trust it. Its JSON is a contract
(`gpudiag/analysis/1`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gpudiag.model.inference import InferenceRecord
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
from gpudiag.model.unprofiled.compute_rate import ComputeRate
from gpudiag.model.unprofiled.steps import RecordingCost, UnprofiledRank

if TYPE_CHECKING:
    from gpudiag.model.frames.analysis import Frames

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
    "memory-allocation",
    "host-stall",
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
    "partial-coverage",
    "different-steps",
    "uneven-steps",
    "clock-skew",
    "repaired-input",
    "no-light-recording",
    "cannot-tell",
    "unexplained",
    "mixed-runs",
    "duplicate-ranks",
    "missing-device-activity",
    "lost-kernels",
    "thin-recording",
)

#: Those that leave no finding above low confidence.
UNTRUSTED_CODES = frozenset(VALIDITY_CODES[-5:])
#: Those with which nothing can be said of all steps, or of compute as what sets the pace.
NOT_ALL_SEEN_CODES = frozenset({"partial-coverage"})
#: Those with which nothing can be said of what happens between ranks.
NOT_ONE_JOB_CODES = frozenset({"mixed-runs", "missing-device-activity"})

StepUnit = Literal["step", "repeated-unit", "recording"]
#: What a recorded process did with its model.
WorkloadKind = Literal["training", "inference", "unknown"]
#: What computes: `unread` is an accelerator whose activity no reader understands.
DeviceKind = Literal["gpu", "cpu", "unread"]
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, what removing it alone would gain, how sure we are, and what to do.

    `recoverable_ms_per_step` is the fall in the job's step time if only this cause went away; None where that cannot
    be known, and then `evidence["reason"]` says why.

    `instead` are the codes of other findings here of which removing any one suffices: something else sets the pace then
    and what is left of the others gains nothing more. `place` says where in the step the host is, as far as is known:
    after which operator and before which, file and line. `parts_ms` is what the recoverable time is made of, by name,
    in milliseconds; the parts add up to it.
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
    parts_ms: dict[str, Milliseconds] = {}
    evidence: dict[str, Any] = {}
    advice: tuple[str, ...] = ()


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the path of fixes: the finding that is fixed after those before it, and what is left then.

    Attributes:
        code, ranks, cause: of the finding.
        step_ms: the job's step time once this and all fixes before it are done.
        then: the bucket that takes most of what is left of the step but compute, or `compute` where that sets the pace.
    """

    code: str
    ranks: tuple[Ordinal, ...] = ()
    cause: str | None = None
    step_ms: Milliseconds
    then: str


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What explains a bucket (but compute) that takes 5 % of the step or more on the ranks that set the pace.

    Attributes:
        bucket: one of `BUCKETS`.
        ms: per step, on the rank that sets the pace.
        by: codes of the findings and validity warnings that explain it; empty where nothing does.
        unexplained_ms: what of it none of them accounts for.
        note: the same in words, where something is left unexplained or one cause hides another.
    """

    bucket: str
    ms: Milliseconds
    by: tuple[str, ...] = ()
    unexplained_ms: Milliseconds = 0.0
    note: str = ""


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust the numbers less, and what to record instead. Not a finding about the job."""

    code: str
    message: str


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Step times in milliseconds; `reasons` says of each missing value why it is missing.

    `corrected_interval_ms` is where `corrected_mean_ms` lies at 95 %: (low, high); None of a single step.
    `unprofiled_times_ms` are the single steps behind `unprofiled_mean_ms`, in order; empty where they were not kept.
    `covered_percent` is the analysed windows' share of the device's busy time in the recording; of the recording's span
    where the device was never idle long. `unit` says what was analysed: marked or inferred training steps, a unit that
    repeats within a larger range (a layer, a forward pass), or the whole recording.
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


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's clock was brought onto the first rank's, from the common ends of collectives.

    `offset_ms` was added to the rank's times; the ends of `matched` collectives are then `residual_ms` apart, in the
    median.
    """

    rank: Ordinal
    offset_ms: Difference
    residual_ms: Milliseconds
    matched: Count


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


class OperatorSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of the framework by name, on the threads that launch work: host time per step, averaged over ranks.

    `own_ms_per_step` is without that of the operators within it; `per_step` is how often it was called.
    """

    name: str
    own_ms_per_step: Milliseconds
    per_step: Rate


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one module of the model takes, in ms per step on each of `Analysis.devices`, in that order.

    On a GPU: of the kernels, copies and memsets that its operators launched, communication left out; on a CPU, of its
    operators. Times include the modules below it in path, `own_` do not; what backward computes again is in backward.

    `root` is the class of the outermost module (`Net#2`: another of that class), `path` the module's in it, as in
    `named_modules()`, `type` its class, `calls` its forward calls per step, mean of the devices.
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
    """What modules take, as they were first called; outside of them, per device (optimizer, loss); or why not."""

    times: tuple[ModuleTime, ...] = ()
    outside_ms: tuple[Milliseconds, ...] = ()
    reason: str = ""


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
    input_only: bool = False
    """Batches were taken and nothing was done with them: its samples per second are the loader's."""
    software: dict[str, str] = {}
    hosts: tuple[str, ...] = ()


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of analysing one job's traces."""

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
    """None where no modules were marked: recordings of others and before there were marks, TensorFlow."""
    source: Source = Source()
    timed: tuple[UnprofiledRank, ...] | None = None
    recording: RecordingCost | None = None
    compute: ComputeRate | None = None
    """What devices compute and how fast; None where nothing was counted: traces alone, no model told, TensorFlow."""
    inference: InferenceRecord | None = None
    """How fast the run wrote a volume; None where it trained."""

    def __repr__(self) -> str:
        from gpudiag.model.frames.summary import summary  # noqa: PLC0415  # for those only who print one

        return summary(self)

    def frames(self) -> Frames:
        """Its tables as pandas frames, one row per bucket, step, wait and so on. Imports pandas."""
        from gpudiag.model.frames.analysis import analysis_frames  # noqa: PLC0415  # pandas, for those only who want tables

        return analysis_frames(self)
