"""Batch norm over all ranks: each layer of it exchanges its statistics, forward and backward."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer


class SyncBatchNorms(Fault[DdpTrainer]):
    """`SyncBatchNorm` in place of each batch norm, with the same parameters. It costs what it costs."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
        self._places = [
            (parent, name, child, convert(child))
            for parent in trainer.model.modules()
            for name, child in parent.named_children()
            if isinstance(child, _BatchNorm)
        ]

    def switch(self, *, on: bool) -> None:
        """Put one or the other in."""
        for parent, name, alone, together in self._places:
            setattr(parent, name, together if on else alone)
