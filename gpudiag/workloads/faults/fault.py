"""What a fault is: something that can be switched on and off between two steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from gpudiag.worker.timing import clock_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gpudiag.workloads.faults.trainer import Trainer

_ROUNDS = 3


class Fault(ABC):
    """One fault in one process. It begins switched off.

    Args:
        trainer: what it is put into.
        amount_ms: its size.
        mine: this rank is to have it. Ranks that are not still do what all must do together, and nothing else.
    """

    def __init__(self, trainer: Trainer, amount_ms: float, *, mine: bool) -> None:
        self.trainer = trainer
        self.amount_ms = amount_ms
        self.mine = mine

    @abstractmethod
    def switch(self, *, on: bool) -> None:
        """Switch it on or off. Called between two steps, on every rank before the same step."""

    def rest(self) -> None:
        """Leave the trainer as it was before this fault; it may be switched on again later."""
        self.switch(on=False)

    def close(self) -> None:
        """Give back what it holds, if anything. Called once, at rest."""
        return


class NoFault(Fault):
    """A clean run: on and off are the same."""

    def switch(self, *, on: bool) -> None:
        """Nothing."""


def milliseconds_of(function: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """How long one call takes, launches and device work together, averaged over calls that follow each other.

    The fastest of three rounds: a first call sets things up, and other programs may have taken the core meanwhile.
    """
    clock = clock_for(device)
    rounds = []
    for _ in range(_ROUNDS):
        function()
        clock.read()
        clock.restart()
        for _ in range(repeats):
            function()
        clock.mark()
        rounds.append(clock.read()[0] / repeats)
    return min(rounds)
