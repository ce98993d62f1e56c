"""Implement faults of input batches: too few workers, inputs in float64, and varying lengths."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

from gpudiag.training.jobs.data.batches import Batch, Pool
from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: Number of DataLoader workers. As in real jobs, two workers begin and finish at the same time, so batches arrive in
#: pairs. In CPU jobs there is one worker, because pairs would increase the scatter of step times.
_GPU_WORKERS, _CPU_WORKERS = 2, 1
#: Number of batches that each worker prefetches (PyTorch's default).
_AHEAD = 2
#: Number of distinct batches.
_BATCHES = 2


class _SlowStorage(Dataset[Batch]):
    """A data set in which loading a sample takes `seconds`."""

    def __init__(self, pool: Pool, seconds: float) -> None:
        self._pool, self._seconds = pool, seconds

    def __len__(self) -> int:
        return len(self._pool)

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self._seconds)
        return self._pool[index]


class TooFewWorkers(Fault[DdpTrainer]):
    """Load batches with a DataLoader that delivers one batch per (clean step time + `amount_ms`)."""

    def prepare(self) -> None:
        """Start the workers."""
        trainer = self.trainer
        size = trainer.batch_size
        generator = torch.Generator().manual_seed(trainer.place.rank)
        pool = Pool(*trainer.workload.samples(_BATCHES * size, generator))
        on_gpu = trainer.device.type == "cuda"
        workers = _GPU_WORKERS if on_gpu else _CPU_WORKERS
        self._ready = workers * _AHEAD  # number of prefetched batches
        # Workers make batches at the same time, so each batch takes `workers` times the interval between batches.
        sample_s = workers * (trainer.clean_ms + self.amount_ms) / 1e3 / size
        loader = DataLoader(
            _SlowStorage(pool, sample_s),
            batch_size=size,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            pin_memory=on_gpu,
        )
        self._batches: Iterator[Batch] = iter(loader)

    def switch(self, *, on: bool) -> None:
        """Discard the prefetched batches and take new ones from the workers (on), or take batches from memory (off)."""
        loader = self.trainer.loader
        if not on or not self.affected:
            loader.source = loader.usual
        elif loader.source is not self._batches:  # not already on
            for _ in range(self._ready):  # prefetched while the fault was off, so they would not be late
                next(self._batches)
            loader.source = self._batches

    def close(self) -> None:
        """Stop the workers by deleting their iterator."""
        self._batches = iter(())


class _OtherBatches(Fault[DdpTrainer]):
    """Base class of faults that take other batches than usual until `rest` is called."""

    @abstractmethod
    def batches(self, *, on: bool) -> Iterator[Batch]:
        """Return the batches of the steps until the next switch, with the fault (on) or without it (off)."""

    def switch(self, *, on: bool) -> None:
        """Start to take the batches with the fault (on) or without it (off)."""
        self.trainer.loader.source = self.batches(on=on)

    def rest(self) -> None:
        """Take the usual batches again."""
        self.trainer.loader.source = self.trainer.loader.usual


class DoubleBatches(_OtherBatches):
    """Send inputs in float64 from pageable memory, and convert them to float32 on the device.

    The size of the fault follows from the inputs, not from `amount_ms`.
    """

    def prepare(self) -> None:
        """Convert some batches to float64."""
        usual = self.trainer.loader.usual
        self._doubles = [(inputs.double(), target) for inputs, target in itertools.islice(usual, _BATCHES)]

    def batches(self, *, on: bool) -> Iterator[Batch]:
        """Return batches in float64 (on), or the usual batches (off)."""
        return itertools.cycle(self._doubles) if on and self.affected else self.trainer.loader.usual


class VaryingLengths(_OtherBatches):
    """In each step give one rank longer sequences (or more images), which take `amount_ms` longer. Ranks take turns.

    Without the fault all ranks have short batches. So on and off differ by the extra time of a long batch.
    """

    def prepare(self) -> None:
        """Make a long and a short batch. Train on both, so that autotuning for their shapes happens here."""
        self._long = next(self.trainer.loader.usual)
        # A batch with a share of the tokens takes about this share of the time.
        self._short = self._cut(self._long, max(0.1, 1 - self.amount_ms / self.trainer.clean_ms))
        for batch in (self._long, self._short):
            self.trainer.train(batch)

    def batches(self, *, on: bool) -> Iterator[Batch]:
        """Yield a long batch in the steps that are this rank's turn (if on), and a short batch in all other steps."""
        position = self.trainer.place
        for step in itertools.count(position.rank):
            yield self._long if on and step % position.world_size == 0 else self._short

    def _cut(self, batch: Batch, share: float) -> Batch:
        """Return a batch with a share of each sequence's tokens, or with a share of the batch's images."""
        axis = 1 if batch[1].dim() > 1 else 0  # targets have a second dimension only if samples are sequences
        length = max(1, round(share * batch[0].shape[axis]))
        inputs, target = (tensor.narrow(axis, 0, length).contiguous() for tensor in batch)
        return (inputs.pin_memory(), target.pin_memory()) if self.trainer.device.type == "cuda" else (inputs, target)
