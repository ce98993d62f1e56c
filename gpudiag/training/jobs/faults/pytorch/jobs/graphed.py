"""Forward and backward as one CUDA graph."""

from __future__ import annotations

import copy

import torch
from torch import distributed as dist

from gpudiag.training.jobs.data.batches import Batch
from gpudiag.training.jobs.faults.pytorch.jobs.job import Job
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

_WARM_UP = 3


class Graphed(Job):
    """Forward and backward are replayed; the gradients, in one buffer, are averaged over ranks by one all-reduce.

    It trains a copy of the model: DDP's hooks would tie the other's gradients to the stream that it was made on.
    """

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        self._model = copy.deepcopy(trainer.model)
        parameters = list(self._model.parameters())
        self._gradients = torch.zeros(sum(parameter.numel() for parameter in parameters), device=trainer.device)
        pieces = torch.split(self._gradients, [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = torch.as_strided(piece, parameter.shape, parameter.stride())
        self._optimizer = trainer.workload.optimizer(parameters)
        self._inputs, self._target = (tensor.to(trainer.device) for tensor in next(trainer.loader.usual))
        beside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP):
                self._compute()
        torch.cuda.current_stream().wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads of the process (NCCL's watchdog) go on calling CUDA meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._compute()

    def enter(self, *, on: bool) -> None:  # noqa: ARG002  # as with the exchange
        """Train by replaying."""
        self.trainer.other_step = self._step

    def _compute(self) -> None:
        self._gradients.zero_()
        inputs, target = self.trainer.on_device((self._inputs, self._target))
        self.trainer.backward(self._model, inputs, target)

    def _step(self, batch: Batch) -> None:
        inputs, target = batch
        self._inputs.copy_(inputs, non_blocking=True)
        self._target.copy_(target, non_blocking=True)
        self._graph.replay()
        if self.trainer.exchange.happens:
            dist.all_reduce(self._gradients, op=dist.ReduceOp.AVG)
        self.trainer.arithmetic.step(self._optimizer)
