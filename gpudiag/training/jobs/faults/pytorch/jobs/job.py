"""What a job of its own is, and those that only feed the clean job's loop in another way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from gpudiag.training.jobs.data.batches import Batch
from gpudiag.training.jobs.data.prefetch import DevicePrefetch
from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.communication import without_communication
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_MICRO_BATCHES = 2


class Job(Fault[DdpTrainer]):
    """A job instead of the clean one, with its exchange (on) or without."""

    def switch(self, *, on: bool) -> None:
        """Train in this way."""
        self.trainer.exchange.way = "plain" if on else without_communication(self.trainer)
        self.enter(on=on)

    @abstractmethod
    def enter(self, *, on: bool) -> None:
        """Make the trainer train in this way; it may do so already."""

    def leave(self) -> None:
        """Make it train as usual."""
        self.trainer.other_step = None

    def rest(self) -> None:
        """Train and exchange as usual."""
        self.leave()
        self.trainer.exchange.way = "plain"


class SideStreamCopies(Job):
    """Batches are copied on a stream of their own, one ahead."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._ahead: Iterator[Batch] = iter(DevicePrefetch(trainer.loader.usual, trainer.device))

    def enter(self, *, on: bool) -> None:  # noqa: ARG002  # as with the exchange
        """Take batches that are on the device."""
        self.trainer.loader.source = self._ahead

    def leave(self) -> None:
        """Take those in host memory."""
        self.trainer.loader.source = self.trainer.loader.usual


class Accumulation(Job):
    """Gradients of several batches are added up under `no_sync()` and exchanged once."""

    def enter(self, *, on: bool) -> None:  # noqa: ARG002  # as with the exchange
        """Several batches a step."""
        self.trainer.other_step = self._step

    def _step(self, batch: Batch) -> None:
        trainer = self.trainer
        for left in reversed(range(_MICRO_BATCHES)):
            inputs, target = trainer.on_device(batch)
            trainer.backward(trainer.ddp, inputs, target, exchanging=trainer.exchange.happens and not left)
            if left:
                batch = next(trainer.loader.source)
        trainer.update(trainer.optimizer)
