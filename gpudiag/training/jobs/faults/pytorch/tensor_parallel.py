"""Train a job with tensor and data parallelism, after M. Shoeybi et al., "Megatron-LM", 2019, section 3.

Each rank has some columns of the first matrix of a feed-forward layer, and the corresponding rows of the second matrix.
The ranks of a tensor group sum the results of a layer in forward, and the gradients of its input in backward.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpudiag.training.jobs.data.batches import Batch
from gpudiag.training.jobs.faults.pytorch.variants import JobVariant

#: (number of layers, width, number of tokens) in a GPU process and in a CPU process.
_GPU_SIZES, _CPU_SIZES = (8, 2048, 8192), (4, 128, 512)
#: Number of ranks over which each layer is split.
_GROUP_SIZE = 2


class TensorGroup:
    """The ranks over which layers are split. If `happens` is False, these ranks do not communicate."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.happens = True

    def add(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks in place, and return it."""
        if self.happens:
            dist.all_reduce(tensor, group=self.group)
        return tensor


class _SummedGradient(torch.autograd.Function):
    """Return the input in forward, and sum the ranks' gradients in backward: function f of the Megatron paper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor_group: TensorGroup) -> Tensor:
        ctx.tensor_group = tensor_group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.tensor_group.add(gradients[0].contiguous()), None


class _Summed(torch.autograd.Function):
    """Sum the ranks' results in forward, and return the gradient in backward: function g of the Megatron paper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tensor_group: TensorGroup) -> Tensor:  # noqa: ARG004  # autograd's
        return tensor_group.add(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004 # autograd's interface
        return gradients[0], None


class SplitFeedForward(nn.Module):
    """A layer norm and a feed-forward layer. This rank has `1 / ranks` of the hidden units."""

    def __init__(self, width: int, ranks: int, tensor_group: TensorGroup) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width // ranks)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)
        self._tensor_group = tensor_group

    def forward(self, x: Tensor) -> Tensor:
        """Map float[tokens, width] to the same shape."""
        hidden: Any = _SummedGradient.apply(self.norm(x), self._tensor_group)  # type: ignore[no-untyped-call]  # untyped in torch
        share = self.down(functional.gelu(self.up(hidden)))
        summed: Tensor = _Summed.apply(share, self._tensor_group)  # type: ignore[no-untyped-call]  # untyped in torch
        return x + summed


class TensorParallel(JobVariant):
    """Train feed-forward layers that are split over pairs of ranks. DDP averages gradients over several pairs."""

    def prepare(self) -> None:
        """Build the network."""
        trainer = self.trainer
        on_gpu = trainer.device.type == "cuda"
        layers, width, tokens = _GPU_SIZES if on_gpu else _CPU_SIZES
        pairs, odd = divmod(trainer.place.world_size, _GROUP_SIZE)
        if odd:
            raise ValueError(f"{trainer.place.world_size} ranks make no pairs")
        mesh = init_device_mesh(trainer.device.type, (pairs, _GROUP_SIZE), mesh_dim_names=("data", "tensor"))
        self._tensor_group = TensorGroup(mesh["tensor"].get_group())
        # The ranks of a pair have the same tokens.
        generator = torch.Generator().manual_seed(trainer.place.rank // _GROUP_SIZE)
        # The tokens stay on the device. Copying this many bytes in each step would be another fault.
        self._tokens = torch.randn(tokens, width, generator=generator).to(trainer.device)
        stack = nn.Sequential(*(SplitFeedForward(width, _GROUP_SIZE, self._tensor_group) for _ in range(layers)))
        self._network: nn.Module = stack.to(trainer.device)
        if pairs > 1:
            self._network = DistributedDataParallel(self._network, process_group=mesh["data"].get_group())
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-3)
        self._clean = trainer.model, trainer.strategy

    def enter(self, *, on: bool) -> None:
        """Train the split layers, with communication (on) or without it (off)."""
        self._tensor_group.happens = on
        self.trainer.model, self.trainer.strategy = self._network, "tensor-parallel"
        self.trainer.other_step = self._step

    def leave(self) -> None:
        """Train the workload's model again."""
        self.trainer.model, self.trainer.strategy = self._clean
        self.trainer.other_step = None

    def _step(self, _batch: Batch) -> None:
        """Train the split layers on the fixed tokens for one step."""
        trainer = self.trainer
        network, happens = self._network, self._tensor_group.happens
        context = network.no_sync() if isinstance(network, DistributedDataParallel) and not happens else nullcontext()
        with context:
            with trainer.arithmetic.forward():
                loss = network(self._tokens).float().square().mean()
            trainer.arithmetic.backward(loss)
        trainer.update(self._optimizer)
