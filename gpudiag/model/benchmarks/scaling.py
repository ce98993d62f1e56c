"""Define throughput by number of devices, and the causes of lost throughput (`scaling.json`, `gpudiag/scaling/1`).

A *point* is one training job on a fixed set of devices, measured in unprofiled steps. Comparisons always state the
samples per device and step, the precision, the memory format, and the source of the batches.
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
#: Value of a setting that a run's record does not contain.
NOT_RECORDED = "unknown"
POINT_FILE = "point.json"

Mode = Literal["weak", "strong"]
#: Suffix of a strategy that communicates without peer access.
NO_P2P = "-no-p2p"

PointStatus = Literal["measured", "failed", "not measured"]
#: Units of work whose duration can be estimated.
Amount = Literal["samples", "iterations", "voxels"]

#: Losses from N times one device's throughput down to the measured throughput, in drawing order.
LOSSES = ("input", "slower_compute", "launch", "exposed_transfer", "waiting", "rest")
#: Losses if no steps were recorded: `together` by running several devices at once without communication, and `exchange`
#: by communication.
MEASURED_LOSSES = ("together", "exchange")

#: Parts of a step's time, in the order in which the simulation removes them.
STEP_PARTS = ("waiting", "exposed_transfer", "disturbed", "input", "launch", "compute")
PARTS_FILE = "parts.json"
PARTS_SCHEMA = "gpudiag/step-parts/1"

#: Software that does not change the step time.
_HARMLESS = frozenset({"python"})


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its 95 % confidence interval."""

    value: Difference
    low: Difference
    high: Difference


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that points must share to be compared: host, devices, software.

    Attributes:
        gpus: model names of the GPUs that training could use, sorted by index; empty for CPU processes.
        which: hash of these GPUs' UUIDs, which distinguishes equal machines even if their hosts have equal names.
    """

    host: str = ""
    cpu: str = ""
    usable_cpus: Count | None = None
    gpus: tuple[str, ...] = ()
    which: str = ""
    software: dict[str, str] = {}

    def differences(self, other: Machine) -> list[str]:
        """Return the differences that make points of two machines incomparable, in words (`torch 2.11 and not 2.13`).

        Unknown values count as equal. Machines with equal GPUs are incomparable too, because their hosts differ:
        ResNet-50 took 18 ms on one machine's GPU, and 33 ms on the GPU of another machine with a busy host.
        """
        pairs = (
            ("GPUs", ", ".join(self.gpus), ", ".join(other.gpus)),
            ("host", self.host, other.host),
            ("CPU", self.cpu, other.cpu),
            ("the GPUs of machine", self.which, other.which),
            *((name, self.software[name], other.software.get(name, "")) for name in sorted(self.software)),
        )
        return [
            f"{name} {ours} and not {theirs}"
            for name, ours, theirs in pairs
            if ours and theirs and ours != theirs and name not in _HARMLESS
        ]


class StartResult(msgspec.Struct, frozen=True, kw_only=True):
    """Samples per second of one start of a point's job, with a 95 % interval from the steps of this start only."""

    samples_per_s: Throughput
    ci95: tuple[Difference, Difference]
    freedom: Freedom | None = None


class PointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A point. Missing figures are None, and `error` gives the reason.

    Attributes:
        id: name of the run directory `points/<id>`, derived from the fields up to `threads`.
        strategy: `nccl-no-p2p` if peer access was off.
        device_indices: indices of GPUs or CPU processes (0, 1, ...).
        batch_per_device, global_batch: samples per step.
        options: options of the strategy and the job that are not the default.
        threads: CPU threads of each process.
        samples_per_s, ci95: throughput of all devices together, mean of all starts. The interval covers differences
            between starts.
        paced_by_host: whether the host enqueued work no faster than the device completed it; None if unknown.
        freedom: degrees of freedom of Student's t distribution for `ci95`.
        mean_ms, median_ms, standard_error_ms, jitter_ms: step times on the slowest device. `jitter_ms` is 1.4826 times
            the median absolute deviation. `step_ms` equals `mean_ms`.
        steps: number of unprofiled steps.
        per_device_samples_per_s: throughput of each device in the order of `device_indices`; empty if one process
            drives several devices.
        warmup_steps, warmup_seconds, settled: the warm-up, and whether step times were stable at its end.
        baseline: id of the one-device point to which `speedup` refers: same samples per device (weak) or per step
            (strong), and all other settings equal.
        speedup, efficiency: throughput divided by that of the baseline, and this ratio divided by `devices`. None if
            the baseline's figures are not reliable, as a remark then says.
        voxels_per_sample: mean number of voxels written per sample, which is a block of the volume to predict.
        mvox_per_s: million voxels written per second. Each voxel of the volume counts once.
        tflops_per_s, mfu_percent: compute rate of a device, and its share of the peak (`ComputeRate`).
        alone: whether the point measures one GPU alone, to find a GPU that differs from the others.
        profiled: run directory with the trace and analysis, relative to `scaling.json`; None if not profiled.
        halved_from: id of the point whose larger batch did not fit.
        seconds: duration of the point, set-up included.
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
    starts: tuple[StartResult, ...] = ()
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
    """Parts of a step's time without the profiler (`parts.json`), in milliseconds.

    Attributes:
        timed_ms: mean unprofiled step.
        replayed_ms: step of the what-if simulation, the sum of the unscaled parts.
        recorded_ms: step simulated from recorded durations, with the profiler's overhead.
        profiler_us_per_event: assumed profiler overhead per event on the host, chosen so that the simulated step equals
            the unprofiled one.
        parts_ms: name in `STEP_PARTS` → time; `disturbed` is contention of kernels with collectives.
        scaled_by: factor on all parts (on CPUs), or on all parts except kernels (on GPUs), so that they sum to
            `timed_ms`; 1 if their sum is near `timed_ms`, or (on GPUs) less.
        hidden_communication_ms: communication for which the step does not wait.
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
    """Recorded steps of a point: their directory, relative to the benchmark's directory, and their parts if known."""

    directory: str
    parts: StepParts | None


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One loss of throughput, in percent of the ideal, in samples per second, and as milliseconds per step.

    A negative loss is a gain: this part of the step took less time on N devices than on one device.
    """

    name: str
    percent: Difference
    samples_per_s: Difference
    ms_per_step: Difference


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Losses from N times one device's throughput (100 %) down to the throughput of N devices.

    `reached_percent` and the losses' percents sum to 100. `rest` is the loss that the simulations of the two points do
    not explain. If no steps were recorded, the losses are `MEASURED_LOSSES`, and `parts` is None.
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
    """Expected throughput on more devices, with the same samples per device.

    Attributes:
        efficiency, samples_per_s: expected values, with the range that measured points and assumptions allow.
        network: network between machines; empty within the measured machine.
    """

    devices: Devices
    efficiency: Interval
    samples_per_s: Interval
    network: str = ""


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """The fitted cost of one workload and strategy, and its forecasts.

    step_ms(n) = compute_ms + transfer_ms * 2 (n - 1) / n + latency_ms * growth(n) for n >= 2 devices. `growth` is n - 1
    for a ring and log2 n for a tree. Ring and tree are fitted, and the forecasts' ranges cover both.

    Attributes:
        worst_error: largest relative deviation of a measured point from the fit.
        degrees: number of measured points minus fitted terms. With 0, the fit is exact by construction and unchecked.
        assumptions: assumptions in words.
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
    """Duration of a given number of samples, iterations or voxels at a measured point's speed.

    Attributes:
        of: the given unit: samples, iterations, or voxels.
        iterations: number of steps of the whole job.
        per_minute: iterations per minute.
        like_one_device_hours: hours on N devices for the samples that one device trains in `iterations` steps; None
            unless a step on N devices has N times the samples.
        mvox_per_s: million voxels written per second.
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
    """Throughput of a GPU alone, also relative to the median of all GPUs. `odd` marks an outlier."""

    index: Ordinal
    name: str
    point: str
    samples_per_s: Throughput
    relative: Difference
    odd: bool


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of two GPUs together, compared with the sum of their throughputs alone."""

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
    """A remark on the use of the figures: `code` for scripts, `message` for people."""

    code: str
    message: str


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gpudiag scale`; its JSON is a contract (`gpudiag/scaling/1`).

    `workload` lists several workloads with commas; each point names its own workload.
    """

    schema: str = SCALING_SCHEMA
    workload: str
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
