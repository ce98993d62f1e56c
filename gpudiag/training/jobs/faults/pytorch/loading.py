"""What is wrong with the batches: workers that cannot keep up, numbers too wide, lengths that differ."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from gpudiag.training.jobs.data.batches import Batch
from gpudiag.training.jobs.data.pool import Pool
from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: Two workers that begin together go on to be done together, as in real jobs: two batches, then none for a while. On a
#: CPU, where recorded and timed steps are compared by their scatter, one will do.
_GPU_WORKERS, _CPU_WORKERS = 2, 1
#: Batches that each worker has ready (PyTorch's default).
_AHEAD = 2
_BATCHES = 2


class _SlowStorage(Dataset[Batch]):
    """Samples that take a while to come."""

    def __init__(self, pool: Pool, seconds: float) -> None:
        self._pool, self._seconds = pool, seconds

    def __len__(self) -> int:
        return len(self._pool)

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self._seconds)
        return self._pool[index]


class TooFewWorkers(Fault[DdpTrainer]):
    """A DataLoader whose workers take `amount_ms` longer for each batch than the clean step."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        size = trainer.batch_size
        generator = torch.Generator().manual_seed(trainer.place.rank)
        pool = Pool(*trainer.workload.samples(_BATCHES * size, generator))
        on_gpu = trainer.device.type == "cuda"
        workers = _GPU_WORKERS if on_gpu else _CPU_WORKERS
        self._ready = workers * _AHEAD
        sample_s = workers * (trainer.clean_ms + amount_ms) / 1e3 / size
        loader = DataLoader(
            _SlowStorage(pool, sample_s),
            batch_size=size,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            pin_memory=on_gpu,
        )
        self._batches: Iterator[Batch] = iter(loader)

    def switch(self, *, on: bool) -> None:
        """Take batches from the workers, once what they had ready is gone; or from memory."""
        loader = self.trainer.loader
        if not on or not self.mine:
            loader.source = loader.usual
        elif loader.source is not self._batches:
            for _ in range(self._ready):
                next(self._batches)
            loader.source = self._batches

    def close(self) -> None:
        """End the workers, which go with their iterator."""
        self._batches = iter(())


class _OtherBatches(Fault[DdpTrainer]):
    """Batches from elsewhere while it is on: what `made` gives."""

    @abstractmethod
    def made(self, *, on: bool) -> Iterator[Batch]:
        """The batches of a block of steps."""

    def switch(self, *, on: bool) -> None:
        """Begin with other batches."""
        self.trainer.loader.source = self.made(on=on)

    def rest(self) -> None:
        """Take the usual ones again."""
        self.trainer.loader.source = self.trainer.loader.usual


class DoubleBatches(_OtherBatches):
    """Inputs in float64 from pageable memory, which the device makes float32. They cost what they cost."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        usual = trainer.loader.usual
        self._doubles = [(inputs.double(), target) for inputs, target in itertools.islice(usual, _BATCHES)]

    def made(self, *, on: bool) -> Iterator[Batch]:
        """In float64, or as usual."""
        return itertools.cycle(self._doubles) if on and self.mine else self.trainer.loader.usual


class VaryingLengths(_OtherBatches):
    """Each step another rank has the longest sequences (of images: the most), by `amount_ms` of the clean step.

    Without it all have short ones in every step: a late rank is one that takes longer than its peers.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._long = next(trainer.loader.usual)
        self._short = self._cut(self._long, max(0.1, 1 - amount_ms / trainer.clean_ms))
        for batch in (self._long, self._short):
            trainer.train(batch)  # kernels are chosen for each shape when it is first met

    def made(self, *, on: bool) -> Iterator[Batch]:
        """Long ones in turn, or all short."""
        place = self.trainer.place
        for step in itertools.count(place.rank):
            yield self._long if on and step % place.world_size == 0 else self._short

    def _cut(self, batch: Batch, share: float) -> Batch:
        """The batch with a share of each sequence's tokens, or of the images."""
        axis = 1 if batch[1].dim() > 1 else 0
        length = max(1, round(share * batch[0].shape[axis]))
        inputs, target = (tensor.narrow(axis, 0, length).contiguous() for tensor in batch)
        return (inputs.pin_memory(), target.pin_memory()) if self.trainer.device.type == "cuda" else (inputs, target)
