"""Where a workload's batches come from: the device itself, pinned host memory, or a real DataLoader."""

from __future__ import annotations

from itertools import cycle, repeat
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from gpudiag.model.job import DataSource
    from gpudiag.workloads.workload import Workload

    Batch = tuple[Tensor, Tensor]

#: A DataLoader that never ends in practice, so that no epoch ends within a measurement.
_ENDLESS = 1 << 40

#: Distinct batches in host memory.
_HOST_BATCHES = 4


class Pool(Dataset["Batch"]):
    """Samples made once, given out one by one, each as a copy, as a decoder would make it."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs = inputs
        self._targets = targets

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> Batch:
        index %= len(self._inputs)
        return self._inputs[index].clone(), self._targets[index]


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
    """
    generator = torch.Generator().manual_seed(seed)
    on_gpu = device.type == "cuda"
    if source == "device":
        inputs, targets = workload.samples(batch_size, generator)
        return repeat((inputs.to(device), targets.to(device)))
    if source == "host":
        made = [workload.samples(batch_size, generator) for _ in range(_HOST_BATCHES)]
        if on_gpu:
            made = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in made]
        return cycle(made)
    pool = Pool(*workload.samples(workload.pool, generator))
    return DataLoader(
        pool,
        batch_size=batch_size,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=workers > 0,
        drop_last=True,
    )
