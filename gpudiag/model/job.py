"""Job: what to train and how, as the launcher tells it to the training processes."""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
MemoryFormat = Literal["nchw", "nhwc"]
DataSource = Literal["device", "host", "loader", "zmq"]
TrainedModel = Literal["whole", "trivial", "none"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
MEMORY_FORMATS = ("nchw", "nhwc")
DATA_SOURCES = ("device", "host", "loader", "zmq")
TRAINED_MODELS = ("whole", "trivial", "none")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One training job. None means: whatever suits the workload and the device; `resolved` values are in `run.json`.

    Attributes:
        workload: a built-in name, or `module:function` of the user's own.
        strategy: how gradients are exchanged; not used by a user's own function.
        device: `cuda` for one GPU per process (`cuda:<local rank>`), `cpu` for CPU processes.
        batch_size: samples per process and step.
        loader_workers: processes per training process that put batches together, for `loader` and `zmq`.
        prefetch: copy each batch to the device while the step before it runs.
        model: `whole`; `trivial` for one weight per input value, so that the input is all that takes time; `none` for
            taking batches and doing nothing with them.
        volume: voxels along z, y and x, for workloads that predict a volume.
        keep_prediction: leave the predicted volume in the run directory.
        steps: timed steps.
        warmup: steps left out; None to find out from their times.
        p2p: False where peer access between GPUs was switched off.
    """

    workload: str
    strategy: str
    device: Literal["cuda", "cpu"]
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
