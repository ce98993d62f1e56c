"""What makes the gradient exchange slow: more bytes, or no peer access (which is the launch's doing)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import distributed as dist

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_TRIAL_BYTES = 32 << 20
_REPEATS = 5
#: Extra bytes per byte at most: they lie in memory, one bucket's at a time.
_MOST_EXTRA = 200.0


def without_communication(trainer: DdpTrainer) -> Literal["meeting", "alone"]:
    """How the ranks train when the exchange is to cost nothing.

    What the diagnosis calls recoverable is the whole of it, packing and all, but no waiting for a late rank. GPUs of a
    clean job are level, so each may go alone. Processes on shared cores never are: they go on waiting for each other.
    """
    return "alone" if trainer.device.type == "cuda" else "meeting"


class SlowCommunication(Fault[DdpTrainer]):
    """The exchange takes `amount_ms` longer, measured beforehand. Without the fault there is none."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._extra = min(amount_ms / self._plain_ms(), _MOST_EXTRA)

    def switch(self, *, on: bool) -> None:
        """Exchange slowly, or not."""
        self.trainer.exchange.extra = self._extra
        self.trainer.exchange.way = "slow" if on else without_communication(self.trainer)

    def rest(self) -> None:
        """Exchange as PyTorch does."""
        self.trainer.exchange.way = "plain"
        self.trainer.exchange.release()

    def _plain_ms(self) -> float:
        """How long it takes to exchange all gradients, by the speed of one large all-reduce; the same on all ranks."""
        trial = torch.zeros(_TRIAL_BYTES, dtype=torch.uint8, device=self.trainer.device)
        trial_ms = self.trainer.milliseconds_of(lambda: dist.all_reduce(trial), repeats=_REPEATS)
        mean_ms = self.trainer.agree(trial_ms)
        return mean_ms * self.trainer.gradient_bytes / _TRIAL_BYTES


class WholeCommunication(Fault[DdpTrainer]):
    """The exchange as it is, against none: for launches whose transport is the fault, and for the clean job."""

    def switch(self, *, on: bool) -> None:
        """Exchange as PyTorch does, or not."""
        self.trainer.exchange.way = "plain" if on else without_communication(self.trainer)

    def rest(self) -> None:
        """Exchange as PyTorch does."""
        self.trainer.exchange.way = "plain"
