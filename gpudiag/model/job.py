"""Define the user's request for a run (`RunOptions`), and the complete request that its processes receive (`Job`)."""

from __future__ import annotations

import sys
from typing import Literal

from gpudiag.model.quantities import Difference, Milliseconds
from gpudiag.model.run import ParallelLayout
from gpudiag.model.structs import msgspec

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["nchw", "nhwc"]
DataSource = Literal["device", "host", "loader", "zmq"]
TrainedModel = Literal["whole", "trivial", "none"]
Compression = Literal["bf16", "fp16"]
NcclAlgorithm = Literal["ring", "tree"]
#: A change to the job that `gpudiag profile --try` trains in turns with the unchanged job.
Change = Literal["tf32", "channels-last", "fused", "sdpa", "compile"]

#: Name of the strategy without communication, the same in every framework; its step is the shortest possible.
INDEPENDENT = "independent"

#: The framework if none is given.
DEFAULT_FRAMEWORK = "pytorch"
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
MEMORY_FORMATS: tuple[MemoryFormat, ...] = ("nchw", "nhwc")
DATA_SOURCES: tuple[DataSource, ...] = ("device", "host", "loader", "zmq")
TRAINED_MODELS: tuple[TrainedModel, ...] = ("whole", "trivial", "none")
COMPRESSIONS: tuple[Compression, ...] = ("bf16", "fp16")
NCCL_ALGORITHMS: tuple[NcclAlgorithm, ...] = ("ring", "tree")
CHANGES: tuple[Change, ...] = ("tf32", "channels-last", "fused", "sdpa", "compile")


class CommunicationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for the communication of gradients. `Strategy.takes` lists the options that a strategy supports.

    Attributes:
        bucket_mb: megabytes (2**20 bytes) of gradients per bucket; None for the framework's default of 25.
        compress: precision in which gradients are communicated; None for unchanged precision.
        accumulate: number of batches whose gradients are accumulated on each device before they are communicated.
        nccl_algo: algorithm that NCCL must use; None to let it choose.
        ps_device: index of the device that has all variables; None to spread variables over all devices.
    """

    bucket_mb: float | None = None
    compress: Compression | None = None
    accumulate: int = 1
    nccl_algo: NcclAlgorithm | None = None
    ps_device: int | None = None

    def given(self) -> dict[str, str]:
        """Return name → value of the options that differ from the defaults, for the record and for messages."""
        given = {}
        for name in ("bucket_mb", "compress", "accumulate", "nccl_algo", "ps_device"):
            value = getattr(self, name)
            if value is not None and (name, value) != ("accumulate", 1):
                given[name] = f"{value:g}" if isinstance(value, float) else str(value)
        return given


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True):
    """Rendezvous of several nodes. Fields mean the same as torchrun's options (`--rdzv-backend`, `--rdzv-endpoint`)."""

    endpoint: str
    backend: str = "c10d"
    node_rank: int | None = None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a run, from the command line to its processes. None leaves the choice to gpudiag.

    Attributes:
        workload: a built-in name, or `module:function` of a user-defined one.
        process_per_device: start a user-defined function once per device, even if the framework needs one process only.
        strategy: way in which gradients are communicated; not used by a user-defined function.
        devices: number of GPUs, or of CPU processes, on this node.
        batch_size: samples per device and step; with `parallel`, samples per replica of the model and step.
        loader_workers: number of processes per training process that assemble batches, if `data` is `loader` or `zmq`.
        prefetch: copy each batch to the device during the previous step.
        model: `whole` for the workload's model; `trivial` for one weight per input value, so that only the input takes
            time; `none` to fetch batches without using them.
        volume: voxels along z, y and x, for workloads that predict a volume.
        keep_prediction: leave the predicted volume in the run directory.
        p2p: False to switch off peer access between GPUs.
        exchange: options for the communication of gradients.
        steps: number of unprofiled steps.
        warmup: number of steps before measuring; None to determine it from step times.
        output: the run directory.
        python: the interpreter of the training processes.
        timeout_s: time without progress of a process after which the run counts as hung.
        nodes: number of nodes in the job.
        rendezvous: rendezvous of the nodes; required if there are several.
        command: the user's command line, for the record.
        probe: whether to measure the links before the run; None to measure only if there is no measurement of the last
            day.
        tries: changes to train in turns with the unchanged job, after the recording.
        parallel: division of the model among the processes; None if each process has the whole model.
    """

    workload: str
    framework: str = DEFAULT_FRAMEWORK
    process_per_device: bool = False
    strategy: str | None = None
    devices: int | None = None
    batch_size: int | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None
    data: DataSource | None = None
    loader_workers: int | None = None
    prefetch: bool = False
    model: TrainedModel | None = None
    volume: tuple[int, int, int] | None = None
    keep_prediction: bool = False
    compile: bool = False
    p2p: bool = True
    exchange: CommunicationOptions = CommunicationOptions()
    steps: int | None = None
    warmup: int | None = None
    output: str | None = None
    python: str = sys.executable
    timeout_s: float = 600.0
    nodes: int = 1
    rendezvous: Rendezvous | None = None
    command: tuple[str, ...] = ()
    probe: bool | None = None
    tries: tuple[Change, ...] = ()
    parallel: ParallelLayout | None = None


class Job(RunOptions, frozen=True, kw_only=True):
    """The complete options of a run, as its processes receive them. None means that the workload decides.

    Attributes:
        device: `cuda` for one GPU per process (`cuda:<local rank>`), `cpu` for CPU processes.
        devices: number of devices that each process drives.
        change: the change that this job tries; None for the unchanged job.
    """

    strategy: str
    device: Literal["cuda", "cpu"]
    devices: int = 1
    memory_format: MemoryFormat = "nchw"
    data: DataSource = "loader"
    model: TrainedModel = "whole"
    change: Change | None = None

    @classmethod
    def chosen(cls, options: RunOptions, **choices: object) -> Job:
        """Return the job with these options, of which `choices` replace some. None stands for the job's default."""
        given = {**msgspec.structs.asdict(options), **choices}
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, cls)

    @property
    def environment_options(self) -> dict[str, str]:
        """Return the options of peer access and exchange for the run's record, as far as they were given."""
        return {**({} if self.p2p else {"p2p": "off"}), **self.exchange.given()}

    @property
    def title(self) -> str:
        """Return the name of the trained model for records and reports, with a suffix unless `model` is `whole`."""
        return self.workload + {"whole": "", "trivial": " (trivial model)", "none": " (input only)"}[self.model]


def computed_in(precision: Precision | None, *, on_gpu: bool) -> Precision:
    """Return the precision of computation: by default tf32 on GPUs, fp32 on CPUs. On CPUs, fp32 replaces tf32."""
    if not on_gpu and precision == "tf32":
        return "fp32"
    return precision or ("tf32" if on_gpu else "fp32")


#: Result of comparing measured with predicted savings; without a prediction `faster`, `slower` or `no-difference`.
TryVerdict = Literal[
    "as-predicted",
    "less-than-predicted",
    "more-than-predicted",
    "inconclusive",
    "faster",
    "slower",
    "no-difference",
    "skipped",
    "failed",
]


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted and measured savings per step of one change.

    Attributes:
        predicted_ms: savings of all findings that recommend this change. None if no finding recommends it, because the
            change would save less than 2 % of the step.
        measured_ms: unchanged minus changed step, mean over pairs of blocks; negative if the change costs time.
        ci95_ms: 95 % interval of `measured_ms`, (low, high).
        base_ms, changed_ms: mean step times of the unchanged and the changed job.
        reason: reason why the change was skipped or failed.
    """

    change: str
    predicted_ms: Milliseconds | None = None
    predicted_low_ms: Milliseconds | None = None
    predicted_high_ms: Milliseconds | None = None
    measured_ms: Difference | None = None
    ci95_ms: tuple[Difference, Difference] | None = None
    base_ms: Milliseconds | None = None
    changed_ms: Milliseconds | None = None
    verdict: TryVerdict
    reason: str = ""
