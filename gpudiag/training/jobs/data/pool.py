"""Samples in memory from which loaders put batches together one by one, as they would from files."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpudiag.training.models.pytorch.workload import Workload

Batch = tuple[Tensor, Tensor]

#: A loader that never ends in practice, so that no epoch ends within a measurement.
_ENDLESS = 1 << 40


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


def loader(workload: Workload, *, batch_size: int, workers: int, pinned: bool, seed: int) -> DataLoader[Batch]:
    """A DataLoader over the workload's pool. Every batch is full: those that cross the pool's end begin it again."""
    pool = Pool(*workload.samples(workload.pool, torch.Generator().manual_seed(seed)))
    return DataLoader(
        pool,
        batch_size=batch_size,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
        drop_last=True,
    )
