"""An optimizer that goes through its parameters one by one."""

from __future__ import annotations

import torch
from torch import nn

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_ELEMENTS = 64
_TRIAL_PARAMETERS = 50
_REPEATS = 3


class LoopedOptimizer(Fault[DdpTrainer]):
    """Adam over as many small parameters as take it `amount_ms` with `foreach=False`; without the fault it is fused."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        trial = torch.optim.Adam(self._parameters(_TRIAL_PARAMETERS), foreach=False)
        each_ms = trainer.milliseconds_of(trial.step, repeats=_REPEATS) / _TRIAL_PARAMETERS
        parameters = self._parameters(max(1, round(amount_ms / each_ms)))
        self._looped = torch.optim.Adam(parameters, foreach=False)
        self._fused = torch.optim.Adam(parameters, fused=True)

    def switch(self, *, on: bool) -> None:
        """Update one by one, or all at once."""
        self.trainer.after = self._one_by_one if on and self.mine else self._at_once

    def rest(self) -> None:
        """Have no such parameters."""
        self.trainer.after = None

    def _parameters(self, count: int) -> list[nn.Parameter]:
        made = [nn.Parameter(torch.zeros(_ELEMENTS, device=self.trainer.device)) for _ in range(count)]
        for parameter in made:
            parameter.grad = torch.ones_like(parameter)
        return made

    def _one_by_one(self) -> None:
        self._looped.step()

    def _at_once(self) -> None:
        self._fused.step()
