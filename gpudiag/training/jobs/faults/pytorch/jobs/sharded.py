"""FSDP2: parameters, gradients and optimizer state are spread over the ranks."""

from __future__ import annotations

import copy

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gpudiag.training.jobs.data.batches import Batch
from gpudiag.training.jobs.faults.pytorch.jobs.job import Job
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer
from gpudiag.training.strategies.pytorch.fsdp import shards_of


class Sharded(Job):
    """A copy of the model, sharded part by part; without its exchange the plain model, of which nothing is sharded."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._model = copy.deepcopy(trainer.model)
        for parameter in self._model.parameters():
            # FSDP knows no other layout of weights; channels-last inputs stay what they are.
            parameter.data = parameter.data.contiguous()
        mesh = init_device_mesh(trainer.device.type, (trainer.place.world_size,))
        for part in [*shards_of(self._model), self._model]:
            fully_shard(part, mesh=mesh)
        self._optimizer = trainer.workload.optimizer(self._model.parameters())
        self._strategy = trainer.strategy

    def enter(self, *, on: bool) -> None:
        """Train the sharded copy, or the plain model."""
        self.trainer.other_step = self._step if on else None
        self.trainer.strategy = "fsdp" if on else self._strategy

    def leave(self) -> None:
        """Train the plain model."""
        self.enter(on=False)

    def _step(self, batch: Batch) -> None:
        inputs, target = self.trainer.on_device(batch)
        self.trainer.backward(self._model, inputs, target)
        self.trainer.update(self._optimizer)
