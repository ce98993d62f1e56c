"""Scaling: how throughput grows with devices, and where each lost percent goes (`scaling.json`, `gpudiag/scaling/1`).

A *point* is one training job on a fixed set of devices. Its figures come from steps timed without the profiler. What is
compared is always stated: the samples per device and step, the precision, the layout, where batches come from.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import (
    Bytes,
    Count,
    Devices,
    Difference,
    Freedom,
    Milliseconds,
    Ordinal,
    Percentage,
    Rate,
    Seconds,
    StepMilliseconds,
    Throughput,
)

SCALING_SCHEMA = "gpudiag/scaling/1"
POINT_SCHEMA = "gpudiag/scale-point/1"

SCALING_FILE = "scaling.json"
#: A setting that a run's record does not tell.
NOT_RECORDED = "unknown"
POINT_FILE = "point.json"

Mode = Literal["weak", "strong"]
#: Ends the name of a strategy that exchanges without peer access.
NO_P2P = "-no-p2p"

PointStatus = Literal["measured", "failed", "not measured"]
#: What can be asked how long it takes.
Amount = Literal["samples", "iterations", "voxels"]

#: What a device may lose on the way from N times one device's throughput down to what was reached, in drawing order.
LOSSES = ("input", "slower_compute", "launch", "exposed_transfer", "waiting", "rest")
#: And where no step was recorded: what is lost without any exchange, and what the exchange costs in all.
MEASURED_LOSSES = ("together", "exchange")

#: What a step's time consists of, in the order in which it is taken away in the replay.
STEP_PARTS = ("waiting", "exposed_transfer", "disturbed", "input", "launch", "compute")
PARTS_FILE = "parts.json"
PARTS_SCHEMA = "gpudiag/step-parts/1"


#: Software that does not change what a step takes.
_HARMLESS = frozenset({"python"})


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its 95 % confidence interval."""

    value: Difference
    low: Difference
    high: Difference


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What points must share to be compared: host, devices, software."""

    host: str = ""
    cpu: str = ""
    usable_cpus: Count | None = None
    gpus: tuple[str, ...] = ()
    """Model names of the GPUs that training could use, by index; empty for CPU processes."""
    which: str = ""
    """A digest of these GPUs' UUIDs: tells machines of one kind apart, whose hosts may be called the same."""
    software: dict[str, str] = {}

    def differences(self, other: Machine) -> list[str]:
        """What makes two machines' points incomparable, in words (`torch 2.11 and not 2.13`); unknown is none.

        Two machines of one kind are two machines: ResNet-50 took 18 ms on one GPU of one and 33 ms on one of another,
        whose host was busy. An efficiency made of points of both would be of neither.
        """
        pairs = (
            ("GPUs", ", ".join(self.gpus), ", ".join(other.gpus)),
            ("host", self.host, other.host),
            ("CPU", self.cpu, other.cpu),
            ("the GPUs of machine", self.which, other.which),
            *((name, self.software[name], other.software.get(name, "")) for name in sorted(self.software)),
        )
        return [
            f"{what} {mine} and not {theirs}"
            for what, mine, theirs in pairs
            if mine and theirs and mine != theirs and what not in _HARMLESS
        ]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of a point's job measured: samples per second, with the 95 % interval of its steps alone."""

    samples_per_s: Throughput
    ci95: tuple[Difference, Difference]
    freedom: Freedom | None = None


class PointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One point. Missing figures are None, and `error` says why.

    Attributes:
        id: names its run directory, `points/<id>`; it is made of what follows up to `threads`.
        strategy: `nccl-no-p2p` where peer access was off.
        device_indices: which GPUs, or how many CPU processes (0, 1, ...).
        batch_per_device, global_batch: samples per step.
        options: modifiers of the strategy and of the job that are not the default.
        threads: CPU threads of each process.
        samples_per_s, ci95: of all devices together, the mean of all starts; the interval covers what starts differ by.
        starts: each start of the job by itself.
        paced_by_host: the host put work into the queue no faster than the device did it; None where that is not known.
        freedom: degrees of freedom of the Student t behind `ci95`.
        mean_ms, median_ms, standard_error_ms, jitter_ms: step times on the slowest device; `jitter_ms` is 1.4826 times
            the median absolute deviation; `step_ms` is the mean.
        steps: how many were timed.
        per_device_samples_per_s: of each device by itself, in the order of `device_indices`.
        warmup_steps, warmup_seconds, settled: what was left out first, and whether step times had settled by then.
        baseline: id of the one-device point that `speedup` refers to: same strategy, same samples per device (weak) or
            per step (strong), same everything else.
        speedup, efficiency: samples per second over the baseline's, and that over the number of devices; None where the
            baseline decides nothing, which a remark says.
        parameters, gradient_bytes: of the model.
        voxels_per_sample, mvox_per_s: of what predicts a volume: voxels that a block writes on average, and those
            written per second, each once, over the whole volume.
        tflops_per_s, mfu_percent: what a device computes per second, and of its peak (`ComputeRate`).
        alone: this GPU by itself, to find one that is unlike the others.
        profiled: the run directory with its trace and analysis, relative to `scaling.json`; None where not profiled.
        halved_from: id of the point whose larger batch did not fit.
        seconds: how long the point took, set-up included.
    """

    schema: str = POINT_SCHEMA
    id: str
    workload: str
    framework: str = "pytorch"
    strategy: str
    devices: Devices
    device_indices: tuple[Ordinal, ...]
    batch_per_device: Count
    global_batch: Count
    mode: Mode = "weak"
    precision: str
    memory_format: str
    data: str
    options: dict[str, str] = {}
    threads: Count | None = None
    status: PointStatus = "not measured"
    error: str | None = None
    samples_per_s: Throughput | None = None
    ci95: tuple[Difference, Difference] | None = None
    freedom: Freedom | None = None
    starts: tuple[Start, ...] = ()
    paced_by_host: bool | None = None
    step_ms: StepMilliseconds | None = None
    mean_ms: StepMilliseconds | None = None
    median_ms: Milliseconds | None = None
    standard_error_ms: Milliseconds | None = None
    jitter_ms: Milliseconds | None = None
    steps: Count = 0
    per_device_samples_per_s: tuple[Rate, ...] = ()
    warmup_steps: Count | None = None
    warmup_seconds: Seconds | None = None
    settled: bool | None = None
    baseline: str | None = None
    speedup: Rate | None = None
    speedup_ci95: tuple[Difference, Difference] | None = None
    efficiency: Rate | None = None
    efficiency_ci95: tuple[Difference, Difference] | None = None
    parameters: Count | None = None
    gradient_bytes: Bytes | None = None
    voxels_per_sample: Rate | None = None
    mvox_per_s: Rate | None = None
    tflops_per_s: Rate | None = None
    mfu_percent: Percentage | None = None
    alone: bool = False
    profiled: str | None = None
    halved_from: str | None = None
    created: str = ""
    seconds: Seconds = 0.0
    machine: Machine = Machine()


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's time consists of without the profiler (`parts.json`), in milliseconds.

    Attributes:
        timed_ms: the mean step as timed without the profiler.
        replayed_ms: the replay's, whose parts these are; they add up to it.
        recorded_ms: the mean recorded step, with the profiler.
        profiler_us_per_event: what the profiler is taken to have cost the host per event, so that the replay takes as
            long as the timed steps.
        parts_ms: by name of `STEP_PARTS`; `disturbed` is what kernels take longer beside collectives.
        scaled_by: what all parts (on CPUs), or all but the kernels' (on GPUs), were multiplied by, where recorded steps
            were longer than the timed ones beyond what the profiler explains; else 1.
        hidden_communication_ms: transfers that the step does not wait for.
    """

    schema: str = PARTS_SCHEMA
    timed_ms: Milliseconds
    replayed_ms: Milliseconds
    recorded_ms: Milliseconds
    profiler_us_per_event: Rate
    parts_ms: dict[str, Difference]
    scaled_by: Rate = 1.0
    on_cpu: bool = False
    hidden_communication_ms: Milliseconds = 0.0


class RecordedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded steps of a point: their run directory, relative to the benchmark's, and their parts where known."""

    directory: str
    parts: StepParts | None


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One loss: in percent of the ideal throughput, in samples per second, and per step in milliseconds.

    A negative loss is a gain: with N devices this part took less than with one.
    """

    name: str
    percent: Difference
    samples_per_s: Difference
    ms_per_step: Difference


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """From N times one device's throughput (100 %) down to what N devices reached.

    `reached_percent` and the losses' percents sum to 100. `rest` is by how much the replays of the two points miss the
    timed difference. Without recorded steps the losses are those of `MEASURED_LOSSES`, and `parts` None.
    """

    point: str
    baseline: str
    workload: str
    strategy: str
    devices: Devices
    ideal_samples_per_s: Throughput
    reached_samples_per_s: Throughput
    reached_percent: Difference
    losses: tuple[Loss, ...]
    hidden_communication_ms: Milliseconds
    parts: StepParts | None = None
    baseline_parts: StepParts | None = None
    notes: tuple[str, ...] = ()


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What to expect of more devices, with the same samples per device. Percents of N times one device.

    Attributes:
        devices: how many.
        efficiency: expected, with the range that the measured points and the assumptions leave open.
        samples_per_s: likewise.
        network: what carries the gradients between machines; empty within the machine that was measured.
    """

    devices: Devices
    efficiency: Interval
    samples_per_s: Interval
    network: str = ""


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted cost of one workload and strategy, and what follows from it.

    step_ms(n) = compute_ms + transfer_ms * 2 (n - 1) / n + latency_ms * growth(n), for 2 <= n; `growth` is n - 1 for a
    ring and log2 n for a tree; both are fitted, and the range covers both.

    Attributes:
        worst_error: largest relative deviation of a measured point from the fit.
        degrees: measured points less fitted terms; 0 means that the fit passes through the points by construction and
            nothing checks it.
        assumptions: in words.
    """

    workload: str
    strategy: str
    batch_per_device: Count
    precision: str
    memory_format: str
    data: str
    compute_ms: Difference
    transfer_ms: Difference
    latency_ms: Difference
    growth: str
    worst_error: Difference
    degrees: Count
    measured_devices: tuple[Ordinal, ...]
    forecasts: tuple[Forecast, ...]
    assumptions: tuple[str, ...] = ()


class Duration(msgspec.Struct, frozen=True, kw_only=True):
    """How long a given amount of training takes at a measured point's pace.

    Attributes:
        of: what was asked for: so many samples, iterations, or voxels.
        iterations: how many steps that is; a step of N devices is N times the samples of a step of one.
        per_minute: iterations per minute.
        like_one_device_hours: of iterations on N devices, each N times the samples of one device: how long the
            samples of as many iterations on one device take. None where an iteration is the same on one device.
        mvox_per_s: of voxels, how many million are written per second.
    """

    point: str
    of: Amount = "samples"
    samples: Rate
    iterations: Rate
    per_minute: Rate | None = None
    hours: Rate
    like_one_device_hours: Rate | None = None
    voxels: Rate | None = None
    mvox_per_s: Rate | None = None


class AloneGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by itself: its throughput beside the median of all, and whether it is unlike the rest."""

    index: Ordinal
    name: str
    point: str
    samples_per_s: Throughput
    relative: Difference
    odd: bool


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two GPUs together, beside the sum of what each does alone."""

    indices: tuple[Ordinal, Ordinal]
    link: str
    strategy: str
    point: str
    samples_per_s: Throughput
    efficiency: Rate
    efficiency_ci95: tuple[Difference, Difference]


class LinkComparison(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs of one link kind: the median efficiency and its range."""

    link: str
    strategy: str
    pairs: Count
    efficiency: Rate
    lowest: Difference
    highest: Difference


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Something to know before the figures are used: `code` for scripts, `message` for people."""

    code: str
    message: str


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gpudiag scale`; its JSON is a contract (`gpudiag/scaling/1`)."""

    schema: str = SCALING_SCHEMA
    workload: str
    """The workload; several are joined by a comma, and each point names its own."""
    mode: Mode = "weak"
    created: str = ""
    version: str = ""
    command: tuple[str, ...] = ()
    machine: Machine = Machine()
    points: tuple[PointRecord, ...] = ()
    alone: tuple[AloneGpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
    links: tuple[LinkComparison, ...] = ()
    waterfalls: tuple[Waterfall, ...] = ()
    prospects: tuple[Prospect, ...] = ()
    durations: tuple[Duration, ...] = ()
    remarks: tuple[Remark, ...] = ()
