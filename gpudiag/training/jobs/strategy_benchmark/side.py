"""One strategy of a benchmark with its own copy of the model."""

from __future__ import annotations

import torch

from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.model.job import CommunicationOptions
from gpudiag.training.frameworks.pytorch.runtime import clock_for
from gpudiag.training.jobs.strategy_benchmark.subject import Subject
from gpudiag.training.jobs.strategy_benchmark.world import World
from gpudiag.training.strategies.registry import load_strategy, strategy_entry


class Side:
    """Trains the subject with one candidate. All ranks make it at once; a rank that has no part in it makes no step.

    Args:
        world: the processes.
        subject: what is trained.
        candidate: how.

    Raises: whatever the strategy raises when it cannot be used.
    """

    def __init__(self, world: World, subject: Subject, candidate: Candidate) -> None:
        self.candidate = candidate
        self._world = world
        self._subject = subject
        entry = strategy_entry(candidate.strategy)
        self._takes_part = not entry.one_process or world.rank == 0
        devices = world.size if entry.one_process else 1
        options = CommunicationOptions(
            bucket_mb=candidate.bucket_mb, compress=candidate.compress, ps_device=candidate.ps_device
        )
        self.strategy = load_strategy(candidate.strategy, world.device, options, devices)
        self._clock = clock_for(world.device)
        if not self._takes_part:
            return
        self._batch = subject.batch if devices == 1 else subject.larger_batch(devices)
        with world.acting(self.strategy.backend):
            self._model = self.strategy.wrap(subject.fresh_model())
            self._optimizer = self.strategy.optimizer(self._model, subject.workload.optimizer)

    def step(self) -> None:
        """Forward, backward, exchange, update, as the training loop of every workload does it."""
        if not self._takes_part:
            return
        subject = self._subject
        inputs, target = self._batch
        with subject.arithmetic.forward():
            loss = subject.workload.loss(self._model(subject.prepared(inputs)), target)
        subject.arithmetic.backward(loss)
        self.strategy.exchange(self._model)
        subject.arithmetic.step(self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)

    def timed(self, steps: int, *, run_in: int) -> list[float]:
        """Train this many steps after `run_in` others; their times in ms, none on a rank that has no part in it."""
        if not self._takes_part:
            return []
        with self._world.acting(self.strategy.backend):
            for _ in range(run_in):
                self.step()
            self._clock.restart()
            for _ in range(steps):
                self.step()
                self._clock.mark()
            times = self._clock.read()
        if not all(torch.isfinite(torch.tensor(times))):
            raise RuntimeError("step times are not finite")
        return times

    def close(self) -> None:
        """Let the model and what the strategy holds beside its process group go."""
        with self._world.acting(self.strategy.backend):
            self.strategy.release()
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_optimizer", None)
