"""Synchronizations at every layer: `.item()` of a statistic, as in loops that log what goes in and out of each."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer


class Syncs(Fault[DdpTrainer]):
    """Each innermost module's forward begins and ends with an `.item()`.

    The number read is there already, so that the fault is the waiting and no work: with one `.item()` a step the host
    has soon caught up, which costs next to nothing; with one at each layer the device waits for each layer's launches.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._statistic = torch.zeros((), device=trainer.device)
        self._handles: list[RemovableHandle] = []

    def switch(self, *, on: bool) -> None:
        """Hook the layers, or take the hooks out."""
        # Blocks with the fault follow each other: hooks of the last one must not stay beside those of this.
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if on and self.mine:
            layers = [module for module in self.trainer.model.modules() if next(module.children(), None) is None]
            self._handles = [layer.register_forward_pre_hook(self._read) for layer in layers]
            self._handles += [layer.register_forward_hook(self._read) for layer in layers]

    def _read(self, *_: Any) -> None:
        self._statistic.item()


class BetweenLayers(Fault[DdpTrainer]):
    """The largest value of each block's output is read as soon as it is there, as in loops that look for overflow.

    Without the fault it is computed all the same and not read, so that the fault is the waiting alone.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._handles: list[RemovableHandle] = []
        self._reading = False

    def switch(self, *, on: bool) -> None:
        """Read, or only compute."""
        if not self._handles:
            parts = [part for child in self.trainer.model.children() for part in (list(child.children()) or [child])]
            self._handles = [part.register_forward_hook(self._look) for part in parts]
        self._reading = on and self.mine

    def rest(self) -> None:
        """Compute nothing of it."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _look(self, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        largest = output.detach().abs().max()
        if self._reading:
            largest.item()
