"""Where a workload's batches come from: the device, host memory, a DataLoader, or other processes over ZeroMQ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, repeat

import torch
from torch import Tensor

from gpudiag.model.job import DataSource
from gpudiag.training.jobs.data.pool import loader
from gpudiag.training.models.pytorch.workload import Workload

Batch = tuple[Tensor, Tensor]

#: Distinct batches in host memory.
_HOST_BATCHES = 4


def batches(
    workload: Workload,
    source: DataSource,
    *,
    batch_size: int,
    workers: int,
    device: torch.device,
    seed: int,
) -> Iterable[Batch]:
    """Endless batches of `batch_size`.

    `device`: one batch, on the device all along. `host`: a few batches in host memory (pinned where the device is a
    GPU), to be copied each step. `loader`: a DataLoader with `workers` processes that puts each batch together from
    single samples, pinned likewise.

    Raises:
        ValueError: `zmq`, whose servers have to be ended; see `open_batches`.
    """
    on_gpu = device.type == "cuda"
    generator = torch.Generator().manual_seed(seed)
    if source == "device":
        inputs, targets = workload.samples(batch_size, generator)
        return repeat((inputs.to(device), targets.to(device)))
    if source == "host":
        made = [workload.samples(batch_size, generator) for _ in range(_HOST_BATCHES)]
        if on_gpu:
            made = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in made]
        return cycle(made)
    if source == "loader":
        return loader(workload, batch_size=batch_size, workers=workers, pinned=on_gpu, seed=seed)
    raise ValueError(f"batches of '{source}' have to be opened")


@contextmanager
def open_batches(
    name: str,
    workload: Workload,
    source: DataSource,
    *,
    batch_size: int,
    workers: int,
    device: torch.device,
    seed: int,
) -> Iterator[Iterable[Batch]]:
    """The same from any source, also `zmq`: `workers` server processes, at least one, that are ended with the block.

    Args:
        name: the workload's name in the registry, by which servers find it.
        workload: whose samples the batches are made of.
        source: where they come from.
        batch_size: samples per batch.
        workers: processes that put batches together.
        device: what is trained on; batches are pinned where it is a GPU.
        seed: for the samples.

    Raises:
        FrameworkMissingError: `zmq` without pyzmq.
    """
    if source != "zmq":
        yield batches(workload, source, batch_size=batch_size, workers=workers, device=device, seed=seed)
        return
    from gpudiag.training.jobs.data.batch_client import ServedBatches

    with ServedBatches(
        name,
        on_gpu=workload.on_gpu,
        batch_size=batch_size,
        servers=max(1, workers),
        pinned=device.type == "cuda",
        seed=seed,
    ) as served:
        yield served
