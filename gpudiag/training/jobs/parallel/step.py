"""Run training steps of a GPT whose layers, batches and sequences are divided over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gpudiag
from gpudiag.model.run import ParallelLayout
from gpudiag.training.jobs.parallel.experts import ExpertLayer
from gpudiag.training.jobs.parallel.gpt_stage import GptStage
from gpudiag.training.jobs.parallel.mesh import ParallelMesh
from gpudiag.training.jobs.parallel.sizes import INTERLEAVED_STAGES, GptSizes


class ParallelGpt:
    """This process's part of a GPT.

    Attributes:
        stages: number of pipeline stages of the whole model. `numbers` are the numbers of this process's stages.
        parts: this process's pipeline stages, without wrappers for data parallelism. `modules` have the wrappers.
        mesh: the process groups.
        sharded: see the arguments.
        optimizer: optimizer of this process's parameters.

    Args:
        layout: how the work is divided.
        sizes: sizes of the model.
        device: the device of this process.
        sharded: use FSDP2 over data-parallel processes, as experts and split matrices require; otherwise use DDP.
        make_optimizer: returns an optimizer for a list of parameter groups.
        bf16: compute in bf16 under autocast.
        marked: mark forward, backward and update as ranges; in a pipeline, whose passes alternate, only the update.
    """

    def __init__(
        self,
        layout: ParallelLayout,
        sizes: GptSizes,
        device: torch.device,
        *,
        sharded: bool,
        make_optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
        bf16: bool = False,
        marked: bool = True,
    ) -> None:
        self._range: Callable[[str], AbstractContextManager[object]] = gpudiag.range if marked else nullcontext
        self._bf16, self.sharded, self.layout = bf16, sharded, layout
        self.sizes, self.device = sizes, device
        self.mesh = ParallelMesh(device.type, layout)
        several = INTERLEAVED_STAGES if layout.schedule == "interleaved" and layout.pp > 1 else 1
        self.stages = layout.pp * several
        self.numbers = tuple(range(self.mesh.coordinate("pp"), self.stages, layout.pp))  # assigned in turn
        self.parts = [self._part(number) for number in self.numbers]
        wrap = self._sharded if sharded else self._replicated
        self.modules = [wrap(part) for part in self.parts]
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self.optimizer = make_optimizer(_by_mesh(parameters))
        self._schedules: dict[tuple[int, int], Any] = {}  # by (sequences, tokens per sequence) of a batch

    def train(self, tokens: Tensor, targets: Tensor) -> None:
        """Train a step on int64[n, t] tokens and targets on the device. Use this process's part of each sequence."""
        parts, part = self.layout.cp, self.mesh.coordinate("cp")
        tokens, targets = (batch.chunk(parts, dim=1)[part].contiguous() for batch in (tokens, targets))
        if self.layout.pp > 1:
            self._train_pipeline(tokens, targets)
        else:
            # For comparison with a pipeline, microbatches are used without a pipeline too.
            count = self.layout.microbatches
            for inputs, labels in zip(tokens.chunk(count), targets.chunk(count), strict=True):
                with self._range("forward"):
                    loss = cross_entropy(self.modules[0](inputs), labels) / count
                with self._range("backward"):
                    loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        with self._range("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _part(self, number: int) -> GptStage:
        """Make the pipeline stage `number`, with matrices split over the tensor-parallel processes."""
        torch.manual_seed(number)  # all processes with this stage begin with equal parameters
        part = GptStage(
            self.sizes,
            number,
            self.stages,
            sequence_group=self.mesh.group("cp"),
            expert_group=self.mesh.group("ep"),
            bf16=self._bf16,
        ).to(self.device)
        mesh = self.mesh.dimension("tp")
        if mesh is not None:
            feed = "feed" if self.layout.ep == 1 else "feed.expert"  # an `ExpertLayer` contains a feed-forward layer
            columns = ["attention.query", "attention.key", "attention.value", f"{feed}.up"]
            rows = ["attention.projection", f"{feed}.down"]
            for block in part.blocks:
                parallelize_module(
                    block, mesh, dict.fromkeys(columns, ColwiseParallel()) | dict.fromkeys(rows, RowwiseParallel())
                )
            if part.head is not None:
                parallelize_module(part, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
        return part

    def _replicated(self, part: GptStage) -> nn.Module:
        replicas = self.mesh.replicas
        return part if replicas is None else DistributedDataParallel(part, process_group=replicas.get_group())

    def _sharded(self, part: GptStage) -> nn.Module:
        """Shard a stage with FSDP2. An expert is sharded over the processes that have it, if there are several."""
        replicas = self.mesh.replicas
        if replicas is None:
            return part
        experts = [layer.expert for layer in part.modules() if isinstance(layer, ExpertLayer)]
        expert_mesh = self.mesh.expert_replicas
        for expert in experts if expert_mesh is not None else ():
            fully_shard(expert, mesh=expert_mesh)
        # An expert that only one process has is not sharded.
        whole = {parameter for expert in experts for parameter in expert.parameters()} if expert_mesh is None else set()
        for block in part.blocks:
            fully_shard(block, mesh=replicas, ignored_params=whole)
        fully_shard(part, mesh=replicas, ignored_params=whole)
        return part

    def _train_pipeline(self, tokens: Tensor, targets: Tensor) -> None:
        """Run forward and backward of all microbatches through the pipeline."""
        shape = (tokens.shape[0], tokens.shape[1])
        if shape not in self._schedules:
            self._schedules[shape] = self._schedule(*shape)
        first, last = 0 in self.numbers, self.stages - 1 in self.numbers
        keywords: dict[str, Any] = {"target": targets, "losses": []} if last else {}
        schedule = self._schedules[shape]
        if "return_outputs" in signature(schedule.step).parameters:  # since PyTorch 2.10
            keywords["return_outputs"] = False
        schedule.step(*((tokens,) if first else ()), **keywords)

    def _schedule(self, n: int, t: int) -> Any:
        """Make the pipeline schedule for batches of n sequences with t tokens each."""
        count = self.layout.microbatches
        # Stages read only shapes and types from these tensors, which describe one microbatch and have no data.
        hidden = torch.empty(n // count, t, self.sizes.width, device="meta", requires_grad=True)
        tokens = torch.empty(n // count, t, dtype=torch.int64, device="meta")
        logits = torch.empty(n // count, t, self.sizes.vocabulary, device="meta", requires_grad=True)
        stages = [
            PipelineStage(
                module,
                number,
                self.stages,
                self.device,
                input_args=tokens if number == 0 else hidden,
                output_args=logits if number == self.stages - 1 else hidden,
                group=self.mesh.group("pp"),
            )
            for number, module in zip(self.numbers, self.modules, strict=True)
        ]
        if self.layout.schedule == "interleaved":
            return ScheduleInterleaved1F1B([*stages], count, loss_fn=cross_entropy)
        schedule = ScheduleGPipe if self.layout.schedule == "gpipe" else Schedule1F1B
        return schedule(stages[0], count, loss_fn=cross_entropy)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _by_mesh(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Return groups of parameters with the same mesh, because a fused update cannot mix meshes."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return [{"params": group} for group in groups.values()]
