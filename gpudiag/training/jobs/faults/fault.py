"""What a fault is: something that can be switched on and off between two steps; and those that any framework has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Generic, TypeVar

from gpudiag.model.benchmarks.selftest import FaultPlan
from gpudiag.training.jobs.faults.trainer import Trainer

TrainerT = TypeVar("TrainerT", bound=Trainer)


class Fault(ABC, Generic[TrainerT]):
    """One fault in one process. It begins switched off.

    Args:
        trainer: what it is put into.
        amount_ms: its size.
        mine: this rank is to have it. Ranks that are not still do what all must do together, and nothing else.
    """

    def __init__(self, trainer: TrainerT, amount_ms: float, *, mine: bool) -> None:
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


class NoFault(Fault[TrainerT]):
    """A clean run: on and off are the same."""

    def switch(self, *, on: bool) -> None:
        """Nothing."""


class LateLoader(Fault[TrainerT]):
    """Each batch comes `amount_ms` late."""

    def switch(self, *, on: bool) -> None:
        """Set by how much the next batch is late."""
        self.trainer.loader.late_s = self.amount_ms / 1e3 if on and self.mine else 0.0


def make_fault(kinds: Mapping[str, type[Fault[TrainerT]]], plan: FaultPlan, trainer: TrainerT) -> Fault[TrainerT]:
    """Make the fault of this process, switched off. Its size follows from the trainer's clean step time."""
    mine = not plan.ranks or trainer.place.rank in plan.ranks
    return kinds[plan.kind](trainer, plan.amount * trainer.clean_ms, mine=mine)
