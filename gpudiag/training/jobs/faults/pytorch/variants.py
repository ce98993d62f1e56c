"""Implement variants of the clean job: jobs that shard the model, and efficient jobs in which there is nothing to find.

A variant communicates only when it is on. The difference between on and off is the cost of communication.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from gpudiag.training.jobs.data.batches import Batch, DevicePrefetch
from gpudiag.training.jobs.faults.fault import Fault
from gpudiag.training.jobs.faults.pytorch.step_faults import captured
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer
from gpudiag.training.strategies.pytorch.fsdp import shards_of

#: Number of batches per step of `Accumulation`.
_MICRO_BATCHES = 2
#: Number of calls before the capture of `Graphed`, as in PyTorch's example.
_GRAPH_WARM_UP = 3


class JobVariant(Fault[DdpTrainer]):
    """A job that replaces the clean job, with communication (on) or without communication (off)."""

    def switch(self, *, on: bool) -> None:
        """Train this variant, with communication (on) or without it (off)."""
        self.trainer.communication.mode = "plain" if on else self.trainer.without_communication
        self.enter(on=on)

    @abstractmethod
    def enter(self, *, on: bool) -> None:
        """Make the trainer train this variant. The method may be called several times in sequence."""

    def leave(self) -> None:
        """Make the trainer train the clean job again."""
        self.trainer.other_step = None

    def rest(self) -> None:
        """Train the clean job, with communication."""
        self.leave()
        self.trainer.communication.mode = "plain"


class SideStreamCopies(JobVariant):
    """Copy each batch on a side stream during the previous step."""

    def prepare(self) -> None:
        """Make the iterator that copies on a side stream."""
        self._prefetched: Iterator[Batch] = iter(DevicePrefetch(self.trainer.loader.usual, self.trainer.device))

    def enter(self, *, on: bool) -> None:  # noqa: ARG002 # independent of communication
        """Take batches that have been copied to the device."""
        self.trainer.loader.source = self._prefetched

    def leave(self) -> None:
        """Take batches in host memory again."""
        self.trainer.loader.source = self.trainer.loader.usual


class Accumulation(JobVariant):
    """Accumulate gradients of several batches under `no_sync()`, and communicate them once."""

    def enter(self, *, on: bool) -> None:  # noqa: ARG002  # the same without communication
        """Train on several batches per step."""
        self.trainer.other_step = self._step

    def _step(self, batch: Batch) -> None:
        """Train a step on this batch and the next ones. Communicate only in the last backward."""
        trainer = self.trainer
        for left in reversed(range(_MICRO_BATCHES)):
            inputs, target = trainer.on_device(batch)
            trainer.backward(trainer.ddp, inputs, target, communicating=trainer.communication.happens and not left)
            if left:
                batch = next(trainer.loader.source)
        trainer.update(trainer.optimizer)


class WrappedBlocks(JobVariant):
    """Train the model with a wrapper around each block."""

    def prepare(self) -> None:
        """Wrap the blocks."""
        self._blocks = [
            (container, index, block, self.wrap(block))
            for container in _containers(self.trainer.model)
            for index, block in enumerate(container)
        ]
        if not self._blocks:
            raise ValueError("a model without blocks")

    @abstractmethod
    def wrap(self, block: nn.Module) -> nn.Module:
        """Return a block within a wrapper."""

    def enter(self, *, on: bool) -> None:  # noqa: ARG002 # independent of communication
        """Insert the wrapped blocks."""
        for container, index, _, wrapped in self._blocks:
            container[index] = wrapped

    def leave(self) -> None:
        """Insert the original blocks."""
        for container, index, block, _ in self._blocks:
            container[index] = block


class Compiled(WrappedBlocks):
    """Compile each block with `torch.compile`. Equal blocks are compiled once, in the first step."""

    def prepare(self) -> None:
        """Wrap the blocks and train the first step."""
        super().prepare()
        self.enter(on=True)
        self.trainer.step()
        self.leave()

    def wrap(self, block: nn.Module) -> nn.Module:
        """Return a module that compiles the block when it is first called."""
        return cast("nn.Module", torch.compile(block))


class CheckpointedBlock(nn.Module):
    """A block that stores only its input, and recomputes its activations in backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Any) -> Any:
        """Run the block under activation checkpointing."""
        return checkpoint(self.block, x, use_reentrant=False)


class Checkpointing(WrappedBlocks):
    """Use activation checkpointing in each block."""

    def wrap(self, block: nn.Module) -> nn.Module:
        """Return the block with activation checkpointing."""
        return CheckpointedBlock(block)


class Graphed(JobVariant):
    """Run forward and backward as one CUDA graph, and average all gradients with one all-reduce of one buffer.

    This variant trains a copy of the model, because DDP's hooks bind gradients to the stream that created them.
    """

    def prepare(self) -> None:
        """Capture forward and backward."""
        trainer = self.trainer
        self._model = copy.deepcopy(trainer.model)
        parameters = list(self._model.parameters())
        self._gradients = torch.zeros(sum(parameter.numel() for parameter in parameters), device=trainer.device)
        # Let all gradients lie in one buffer, so that one all-reduce communicates them. Keep the parameters' strides.
        pieces = torch.split(self._gradients, [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = torch.as_strided(piece, parameter.shape, parameter.stride())
        self._optimizer = trainer.workload.optimizer(parameters)
        self._inputs, self._target = (tensor.to(trainer.device) for tensor in next(trainer.loader.usual))
        self._graph = captured(self._compute, warm_up=_GRAPH_WARM_UP)

    def enter(self, *, on: bool) -> None:  # noqa: ARG002 # independent of communication
        """Train with the graph."""
        self.trainer.other_step = self._step

    def _compute(self) -> None:
        self._gradients.zero_()
        inputs, target = self.trainer.on_device((self._inputs, self._target))
        self.trainer.backward(self._model, inputs, target)

    def _step(self, batch: Batch) -> None:
        """Copy the batch to the tensors that the CUDA graph reads, replay the graph, and update the parameters."""
        inputs, target = batch
        self._inputs.copy_(inputs, non_blocking=True)
        self._target.copy_(target, non_blocking=True)
        self._graph.replay()
        if self.trainer.communication.happens:
            dist.all_reduce(self._gradients, op=dist.ReduceOp.AVG)
        self.trainer.arithmetic.step(self._optimizer)


class Sharded(JobVariant):
    """Train a copy of the model under FSDP2 (on), or the plain model (off)."""

    def prepare(self) -> None:
        """Copy the model and shard the copy."""
        trainer = self.trainer
        self._model = copy.deepcopy(trainer.model)
        for parameter in self._model.parameters():
            # FSDP supports only contiguous weights, but allows channels-last inputs.
            parameter.data = parameter.data.contiguous()
        mesh = init_device_mesh(trainer.device.type, (trainer.place.world_size,))
        for shard in [*shards_of(self._model), self._model]:
            fully_shard(shard, mesh=mesh)
        self._optimizer = trainer.workload.optimizer(self._model.parameters())
        self._strategy = trainer.strategy

    def enter(self, *, on: bool) -> None:
        """Train the sharded copy (on) or the plain model (off)."""
        self.trainer.other_step = self._step if on else None
        self.trainer.strategy = "fsdp" if on else self._strategy

    def leave(self) -> None:
        """Train the plain model."""
        self.enter(on=False)

    def _step(self, batch: Batch) -> None:
        inputs, target = self.trainer.on_device(batch)
        self.trainer.backward(self._model, inputs, target)
        self.trainer.update(self._optimizer)


def _containers(model: nn.Module) -> Iterator[nn.Sequential]:
    """Yield the containers of blocks: each outermost `nn.Sequential` whose children all have children."""
    for child in model.children():
        if isinstance(child, nn.Sequential) and all(next(block.children(), None) is not None for block in child):
            yield child
        else:
            yield from _containers(child)
