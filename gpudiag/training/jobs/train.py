"""Train any built-in workload under PyTorch. The training loop uses only public features of gpudiag."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn

import gpudiag
from gpudiag.model.job import Job, computed_in
from gpudiag.training.jobs.changes import fused
from gpudiag.training.jobs.data.batch_client import open_batches
from gpudiag.training.jobs.data.batches import DevicePrefetch, MicroBatches
from gpudiag.training.jobs.precision import Arithmetic, use_device
from gpudiag.training.models.pytorch.perceptrons import InputOnly
from gpudiag.training.models.pytorch.workload import Workload
from gpudiag.training.models.registry import load_workload, workload_entry
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy
from gpudiag.training.strategies.registry import load_strategy

#: Number of DataLoader workers per training process on GPUs. On CPUs there are none, because training needs all cores.
_GPU_LOADER_WORKERS = 2


def train(job: Job) -> None:
    """Train until the session is complete. Each process calls this function."""
    if job.parallel is not None:
        from gpudiag.training.jobs.parallel.train import train_parallel

        train_parallel(job, job.parallel)
        return
    on_gpu = job.device == "cuda"
    device = use_device(job.device)
    entry = workload_entry(job.workload)
    batch_size = job.batch_size or entry.default_batch(on_gpu=on_gpu)
    workers = (_GPU_LOADER_WORKERS if on_gpu else 0) if job.loader_workers is None else job.loader_workers
    if job.data == "zmq":
        workers = max(1, workers)  # only server processes make batches
    strategy = load_strategy(job.strategy, device, job.exchange, job.devices)
    # A process that drives several devices takes one batch for all its devices.
    batch_size *= job.devices
    strategy.open()
    try:
        torch.manual_seed(0)
        workload = load_workload(job.workload, on_gpu=on_gpu)
        if job.model == "trivial":
            workload = InputOnly(workload)
        rank = int(os.environ.get("RANK", "0"))
        options = {
            "data": job.data,
            "loader_workers": str(workers if job.data in {"loader", "zmq"} else 0),
            "prefetch": str(job.prefetch).lower(),
            "model": job.model,
            "threads": str(torch.get_num_threads()),
        }
        with open_batches(
            job.workload, workload, job.data, batch_size=batch_size, workers=workers, device=device, seed=rank
        ) as source:
            if job.model == "none":
                _time_input(job, source, batch_size, options)
            else:
                loader = DevicePrefetch(source, device) if job.prefetch else source
                steps = MicroBatches(loader, job.exchange.accumulate)
                _train(job, workload, strategy, steps, device=device, batch_size=batch_size, options=options)
    finally:
        strategy.close()


def _time_input(job: Job, source: Iterable[tuple[Tensor, Tensor]], batch_size: int, options: dict[str, str]) -> None:
    """Time only the fetching of batches, without training. The batches are pinned as for training."""
    with gpudiag.profile(workload=job.title, batch_size=batch_size, device="cpu", options=options) as prof:
        for _ in prof.steps(source):
            pass


def _train(
    job: Job,
    workload: Workload,
    strategy: PytorchStrategy,
    loader: Iterable[list[tuple[Tensor, Tensor]]],
    *,
    device: torch.device,
    batch_size: int,
    options: dict[str, str],
) -> None:
    """Train the workload under a strategy. For each step `loader` yields a list of batches of `batch_size` samples.

    `device` is the first device of this process. `options` are values for the run's record.
    """
    precision = computed_in(job.precision, on_gpu=device.type == "cuda")
    channels_last = job.memory_format == "nhwc"
    layout = workload.channels_last if channels_last else torch.contiguous_format
    bare = workload.model().to(device)
    if channels_last:
        bare = bare.to(memory_format=layout)  # type: ignore[call-overload]  # missing from torch's stubs
    model = strategy.wrap(bare)
    if job.compile:
        model = cast("nn.Module", torch.compile(model))
    make_optimizer = fused(workload.optimizer) if job.change == "fused" else workload.optimizer
    optimizer = strategy.optimizer(model, make_optimizer)
    arithmetic = Arithmetic(precision, device)
    options = {
        "precision": precision,
        "memory_format": job.memory_format,
        "compile": str(job.compile).lower(),
        **options,
    }
    batches_per_step = job.exchange.accumulate
    devices = [torch.device(device.type, number) for number in range(job.devices)] if job.devices > 1 else device
    samples = batch_size // job.devices * batches_per_step  # samples per device and step
    with gpudiag.profile(workload=job.title, model=bare, batch_size=samples, device=devices, options=options) as prof:
        for batches in prof.steps(loader):
            for number, (inputs, target) in enumerate(batches, 1):
                with strategy.accumulating() if number < batches_per_step else nullcontext():
                    with gpudiag.range("forward"), arithmetic.forward():
                        # Copies from pinned memory overlap with the host's next calls.
                        x = workload.prepare(inputs.to(device, non_blocking=True))
                        if channels_last:
                            x = x.contiguous(memory_format=layout)
                        loss = workload.loss(model(x), target.to(device, non_blocking=True))
                        loss = loss / batches_per_step if batches_per_step > 1 else loss
                    with gpudiag.range("backward"):
                        arithmetic.backward(loss)
            strategy.exchange(model)
            with gpudiag.range("optimizer"):
                arithmetic.step(optimizer)
                optimizer.zero_grad(set_to_none=True)
        if strategy.exchanged_bytes:  # the sizes of messages are known only after steps
            prof.describe(bare, gradient_sizes=strategy.exchanged_bytes)
