"""Copies from pageable memory: a tensor beside the batch that nobody pinned, or many small ones, moved each step."""

from __future__ import annotations

import torch

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: The copy whose speed says how large one of the wanted time is.
_TRIAL_BYTES = 64 << 20
_REPEATS = 5
#: Floats of a small tensor, such as a scalar or a row per sample.
_SMALL_ELEMENTS = 64
_TRIAL_COPIES = 50


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


class SmallCopies(Fault[DdpTrainer]):
    """As many copies of small tensors, one `.to(device)` after the other, as take `amount_ms`."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._small = [torch.zeros(_SMALL_ELEMENTS) for _ in range(_TRIAL_COPIES)]
        each_ms = trainer.milliseconds_of(self._copy, repeats=_REPEATS) / _TRIAL_COPIES
        self._small = [torch.zeros(_SMALL_ELEMENTS) for _ in range(max(1, round(amount_ms / each_ms)))]

    def switch(self, *, on: bool) -> None:
        """Add the copies to the step, or take them out."""
        self.trainer.extra = self._copy if on and self.mine else None

    def _copy(self) -> None:
        for tensor in self._small:
            tensor.to(self.trainer.device)
