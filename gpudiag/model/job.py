"""Job: what to train and how, as the launcher tells it to the training processes."""

from __future__ import annotations

from typing import Literal

import msgspec

Framework = Literal["pytorch", "tensorflow"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["nchw", "nhwc"]
DataSource = Literal["device", "host", "loader", "zmq"]
TrainedModel = Literal["whole", "trivial", "none"]
Compression = Literal["bf16", "fp16"]
NcclAlgorithm = Literal["ring", "tree"]

#: As on the command line, and as in records.
FRAMEWORKS: dict[str, Framework] = {"torch": "pytorch", "tensorflow": "tensorflow"}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MEMORY_FORMATS = ("nchw", "nhwc")
DATA_SOURCES = ("device", "host", "loader", "zmq")
TRAINED_MODELS = ("whole", "trivial", "none")
COMPRESSIONS = ("bf16", "fp16")
NCCL_ALGORITHMS = ("ring", "tree")


class ExchangeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a strategy is to exchange gradients, where it leaves a choice; `StrategyEntry.options` says which it does.

    Attributes:
        bucket_mb: megabytes (2**20 bytes) of gradients that travel together; None for the framework's own 25.
        compress: precision in which gradients travel; None for their own.
        accumulate: batches whose gradients are added up on each device before they are exchanged, once per step.
        nccl_algo: algorithm that NCCL must take; None to let it choose.
        ps_device: the one device that has all variables; None to spread them over all.
    """

    bucket_mb: float | None = None
    compress: Compression | None = None
    accumulate: int = 1
    nccl_algo: NcclAlgorithm | None = None
    ps_device: int | None = None

    def given(self) -> dict[str, str]:
        """What differs from the defaults, by name, for the record and for messages."""
        found = {}
        for name in ("bucket_mb", "compress", "accumulate", "nccl_algo", "ps_device"):
            value = getattr(self, name)
            if value is not None and (name, value) != ("accumulate", 1):
                found[name] = f"{value:g}" if isinstance(value, float) else str(value)
        return found


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One training job. None means: whatever suits the workload and the device; `resolved` values are in `run.json`.

    Attributes:
        workload: a built-in name, or `module:function` of the user's own.
        framework: what trains.
        strategy: how gradients are exchanged; not used by a user's own function.
        device: `cuda` for one GPU per process (`cuda:<local rank>`), `cpu` for CPU processes.
        devices: how many each process drives.
        batch_size: samples per device and step.
        loader_workers: processes per training process that put batches together, for `loader` and `zmq`.
        prefetch: copy each batch to the device while the step before it runs.
        model: `whole`; `trivial` for one weight per input value, so that the input is all that takes time; `none` for
            taking batches and doing nothing with them.
        volume: voxels along z, y and x, for workloads that predict a volume.
        keep_prediction: leave the predicted volume in the run directory.
        steps: timed steps.
        warmup: steps left out; None to find out from their times.
        p2p: False where peer access between GPUs was switched off.
        exchange: options of the strategy.
    """

    workload: str
    strategy: str
    device: Literal["cuda", "cpu"]
    framework: Framework = "pytorch"
    devices: int = 1
    batch_size: int | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat = "nchw"
    data: DataSource = "loader"
    loader_workers: int | None = None
    prefetch: bool = False
    model: TrainedModel = "whole"
    volume: tuple[int, int, int] | None = None
    keep_prediction: bool = False
    steps: int | None = None
    warmup: int | None = None
    compile: bool = False
    p2p: bool = True
    exchange: ExchangeOptions = ExchangeOptions()

    @property
    def title(self) -> str:
        """What is trained, as records and reports call it: a workload's input alone is never taken for the workload."""
        return self.workload + {"whole": "", "trivial": " (trivial model)", "none": " (input only)"}[self.model]
