"""Copies from pageable memory: a tensor beside the batch that nobody pinned, moved to the GPU each step."""

from __future__ import annotations

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: The copy whose speed says how large one of the wanted time is.
_TRIAL_BYTES = 64 << 20
_REPEATS = 5


class PageableCopies(Fault[DdpTrainer]):
    """`.to(device)` of pageable memory that takes `amount_ms` alone. Without the fault the step has no such copy."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._pageable = torch.zeros(_TRIAL_BYTES, dtype=torch.uint8)
        each_ms = trainer.milliseconds_of(self._copy, repeats=_REPEATS)
        self._pageable = torch.zeros(max(1, int(_TRIAL_BYTES * amount_ms / each_ms)), dtype=torch.uint8)

    def switch(self, *, on: bool) -> None:
        """Add the copy to the step, or take it out."""
        self.trainer.extra = self._copy if on and self.mine else None

    def _copy(self) -> None:
        self._pageable.to(self.trainer.device)
