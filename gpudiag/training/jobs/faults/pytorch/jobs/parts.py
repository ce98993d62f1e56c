"""Jobs in which the model's blocks are wrapped one by one: compiled, or computed again in backward."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gpudiag.training.jobs.faults.pytorch.jobs.job import Job
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer


def _containers(model: nn.Module) -> Iterator[nn.Sequential]:
    """The outermost containers of blocks: of parts that have parts."""
    for child in model.children():
        if isinstance(child, nn.Sequential) and all(next(part.children(), None) is not None for part in child):
            yield child
        else:
            yield from _containers(child)


class _Wrapped(Job):
    """Each block is wrapped while the job trains."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._blocks = [
            (container, index, block, self.wrap(block))
            for container in _containers(trainer.model)
            for index, block in enumerate(container)
        ]
        if not self._blocks:
            raise ValueError("a model without blocks")

    @abstractmethod
    def wrap(self, block: nn.Module) -> nn.Module:
        """The block with what is around it."""

    def enter(self, *, on: bool) -> None:  # noqa: ARG002  # as with the exchange
        """Put the wrapped blocks in."""
        for container, index, _, wrapped in self._blocks:
            container[index] = wrapped

    def leave(self) -> None:
        """Put the bare ones in."""
        for container, index, block, _ in self._blocks:
            container[index] = block


class Compiled(_Wrapped):
    """`torch.compile` of each block: equal ones are compiled once, while the first step runs."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self.enter(on=True)
        trainer.step()
        self.leave()

    def wrap(self, block: nn.Module) -> nn.Module:
        """Compiled, when it is first called."""
        return cast("nn.Module", torch.compile(block))


class _Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Any) -> Any:
        return checkpoint(self.block, x, use_reentrant=False)


class Checkpointing(_Wrapped):
    """Activation checkpointing: each block keeps its input, and computes the rest again in backward."""

    def wrap(self, block: nn.Module) -> nn.Module:
        """Checkpointed."""
        return _Checkpointed(block)
