"""Train the selftest's divided jobs. Each layer takes a fixed time, in which it needs no CPU core."""

from __future__ import annotations

import gc
from itertools import repeat
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist

from gpudiag.model.benchmarks.selftest import SelftestPlan
from gpudiag.model.run import ParallelLayout
from gpudiag.training.frameworks.pytorch.runtime import clock_for
from gpudiag.training.jobs.faults.parallel_layouts import SEQUENCES
from gpudiag.training.jobs.faults.trainer import Trainer
from gpudiag.training.jobs.parallel.experts import ExpertLayer
from gpudiag.training.jobs.parallel.gpt_stage import SplitBlock
from gpudiag.training.jobs.parallel.sizes import GptSizes
from gpudiag.training.jobs.parallel.step import ParallelGpt
from gpudiag.training.jobs.precision import use_device
from gpudiag.training.session.position import current_position
from gpudiag.training.strategies.pytorch_strategy import gather_objects

#: Number of layers of the whole model, and number of tokens per sequence. The model's real work is negligible.
LAYERS, TOKENS = 4, 64
#: Artificial duration of a layer's forward for a sequence of `TOKENS`, in ms. Backward takes twice as long.
LAYER_MS = 16.0
MS_PER_TOKEN = LAYER_MS / TOKENS


class ParallelTrainer(Trainer):
    """The training loop of one process of the divided jobs.

    Attributes:
        alone: model of the default job, in which each process trains a separate model.
        network: this process's part of the current job's model.
        batch: tokens and targets of the current job, on the device.
    """

    time_all_first: ClassVar[bool] = True

    def __init__(self, plan: SelftestPlan) -> None:
        on_gpu = plan.device == "cuda"
        device = use_device(plan.device)
        self._backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(self._backend, device_id=device if on_gpu else None)
        self._control = dist.new_group(backend="gloo")
        self.alone = self.network = divided_gpt(ParallelLayout(), device)
        self.batch = self.tokens(self.alone)
        super().__init__(
            device=device,
            place=current_position(),
            strategy=self._backend,
            model=self.alone.parts[0],
            batches=repeat(None),  # each step trains on `self.batch`
            clock=clock_for(device),
        )

    def use(self, network: ParallelGpt, batch: tuple[Tensor, Tensor]) -> None:
        """Train this network on this batch from the next step on."""
        self.network, self.batch, self.model = network, batch, network.parts[0]
        several = network.layout.processes > 1
        self.parallel = network.layout if several else None
        self.strategy = "fsdp" if network.sharded else self._backend

    def tokens(self, network: ParallelGpt, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Make tokens and targets, int64[n, t], for this process. The sequences are `factor` times as long as usual.

        A process with 1/k of the layers has k times as many sequences. The targets are the following tokens.
        """
        layers = sum(len(part.blocks) for part in network.parts)
        shape = SEQUENCES * LAYERS // layers, round(factor * TOKENS) + 1
        generator = torch.Generator().manual_seed(network.mesh.batch_index)
        tokens = torch.randint(0, network.sizes.vocabulary, shape, generator=generator).to(network.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def train(self, _batch: Any) -> None:
        """Run forward, backward and update."""
        self.network.train(*self.batch)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of ranks."""
        return gather_objects(value, self._control)

    def close(self) -> None:
        """Delete the models, and then destroy the process group. `PytorchStrategy.close` explains the order."""
        del self.alone, self.network, self.model
        gc.collect()
        dist.destroy_process_group()


def divided_gpt(layout: ParallelLayout, device: torch.device, *, layers: int = LAYERS) -> ParallelGpt:
    """Make this process's part of a small GPT whose layers take `LAYER_MS` each."""
    # With a large vocabulary the last stage would have many more operations than the other stages.
    # The context leaves room for the sequences of `LongSequences`.
    sizes = GptSizes(vocabulary=32, context=4 * TOKENS, width=32, layers=layers, heads=4)
    network = ParallelGpt(
        layout,
        sizes,
        device,
        sharded=layout.tp > 1 or layout.ep > 1,
        make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-4),
        marked=False,
    )
    _set_durations(network)
    return network


def _set_durations(network: ParallelGpt) -> None:
    """Set the artificial duration of each layer. If a layer has experts, the experts take half of it."""
    for part in network.parts:
        for module in part.modules():
            if isinstance(module, SplitBlock):
                has_experts = isinstance(module.feed, ExpertLayer)
                module.ms_per_token = MS_PER_TOKEN / 2 if has_experts else MS_PER_TOKEN
            elif isinstance(module, ExpertLayer):
                module.ms_per_token = MS_PER_TOKEN / 2
