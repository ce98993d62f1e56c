"""`independent`: no exchange at all."""

from __future__ import annotations

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.job import INDEPENDENT
from gpudiag.prediction.cost import Cost
from gpudiag.prediction.situation import Situation
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy


class Independent(PytorchStrategy):
    """Each process trains alone; the difference to another strategy's step time is what that one's exchange costs.

    The processes still share a process group, over which nothing is sent, so that they enter each phase together
    and their traces say which rank they are.
    """

    name = INDEPENDENT
    summary = "No exchange: each process trains its own model. Its step time is the floor for the others."
    listed, special = 80, 80
    communications = False

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Nothing."""
        return Cost(
            exposed_ms=0.0,
            exchange_ms=0.0,
            reason="no exchange: the ceiling of every other strategy, and no training of one model",
        )

    @classmethod
    def code(cls, candidate: Candidate) -> tuple[str, ...]:
        """Nothing to write."""
        return ("# nothing is exchanged: the processes train different models",)


STRATEGY = Independent
