"""Make batches of a workload: on the device, in host memory, or with a DataLoader. Group and prefetch batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice, repeat
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpudiag.model.job import DataSource
from gpudiag.training.models.pytorch.workload import Workload

Batch = tuple[Tensor, Tensor]
T = TypeVar("T")

#: Number of distinct batches in host memory.
_HOST_BATCHES = 4
#: Number of samples that a data set reports, so large that no epoch ends within a measurement.
_ENDLESS = 1 << 40


def batches(
    workload: Workload, source: DataSource, *, batch_size: int, workers: int, device: torch.device, seed: int
) -> Iterable[Batch]:
    """Return endless batches of `batch_size` samples.

    Source `device` is one batch that stays on the device. `host` is a few batches in host memory, one of which is
    copied in each step. `loader` is a DataLoader with `workers` processes. Host memory is pinned for a GPU. `seed` is
    the seed of the random samples.

    Raises:
        ValueError: the source is `zmq`, which only `batch_client.open_batches` supports.
    """
    on_gpu = device.type == "cuda"
    generator = torch.Generator().manual_seed(seed)
    if source == "device":
        inputs, targets = workload.samples(batch_size, generator)
        return repeat((inputs.to(device), targets.to(device)))
    if source == "host":
        host_batches = [workload.samples(batch_size, generator) for _ in range(_HOST_BATCHES)]
        if on_gpu:
            host_batches = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in host_batches]
        return cycle(host_batches)
    if source == "loader":
        return loader(workload, batch_size=batch_size, workers=workers, pinned=on_gpu, seed=seed)
    raise ValueError(f"batches of '{source}' have to be opened")


class Pool(Dataset["Batch"]):
    """A data set of samples in memory. Each access copies the sample's inputs, as decoding a file would."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, index: int) -> Batch:
        index %= len(self._inputs)
        return self._inputs[index].clone(), self._targets[index]


def loader(workload: Workload, *, batch_size: int, workers: int, pinned: bool, seed: int) -> DataLoader[Batch]:
    """Make a DataLoader that repeats the workload's samples endlessly. With `pinned`, batches are in pinned memory."""
    pool = Pool(*workload.samples(workload.pool, torch.Generator().manual_seed(seed)))
    return DataLoader(
        pool,
        batch_size=batch_size,
        num_workers=workers,
        pin_memory=pinned,
        persistent_workers=workers > 0,
        drop_last=True,
    )


class MicroBatches(Generic[T]):
    """Group batches into lists of `count`, one list per step. An incomplete last list is dropped."""

    def __init__(self, batches: Iterable[T], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        """Return the number of steps; raise TypeError if the number of batches is unknown."""
        sized: Any = self._batches
        return len(sized) // self._count

    def __iter__(self) -> Iterator[list[T]]:
        iterator = iter(self._batches)
        while len(step := list(islice(iterator, self._count))) == self._count:
            yield step


class DevicePrefetch:
    """Copy each batch to the GPU on a side stream during the previous step. On a CPU, pass batches through.

    If the batches are in pinned memory, the copies overlap with the previous step's kernels.
    """

    def __init__(self, batches: Iterable[Batch], device: torch.device) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Iterator[Batch]:
        if self._device.type != "cuda":
            yield from self._batches
            return
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # untyped in torch
        source = iter(self._batches)
        ahead = self._copied(source, side)
        while ahead is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(side)
            for tensor in ahead:
                # The memory belongs to the side stream. The memory must not be reused before this step has ended.
                tensor.record_stream(current)
            batch, ahead = ahead, self._copied(source, side)
            yield batch

    def _copied(self, source: Iterator[Batch], side: torch.cuda.Stream) -> Batch | None:
        batch = next(source, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            inputs, targets = (tensor.to(self._device, non_blocking=True) for tensor in batch)
        return inputs, targets
