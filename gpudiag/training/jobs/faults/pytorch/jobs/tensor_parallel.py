"""Tensor parallelism beside data parallelism, over a mesh of both: M. Shoeybi et al., "Megatron-LM", 2019, section 3.

Of each feed-forward layer a rank has some columns of the first matrix and the same rows of the second. Each layer's
result is summed over the ranks of a group in forward, and its input's gradient in backward.
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
from gpudiag.training.jobs.faults.pytorch.jobs.job import Job
from gpudiag.training.jobs.faults.pytorch.trainer import DdpTrainer

#: Layers, their width, and tokens, on a GPU and on a CPU process.
_GPU_SIZES, _CPU_SIZES = (8, 2048, 8192), (4, 128, 512)
#: Ranks that share each layer.
_SHARING = 2


class Sharing:
    """The ranks that share layers; `happens` False: each keeps its part to itself, as if it were the whole."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.happens = True

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.happens:
            dist.all_reduce(tensor, group=self.group)
        return tensor


class _SummedGradient(torch.autograd.Function):
    """The same forward; in backward the ranks' gradients are summed. Megatron's f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sharing: Sharing) -> Tensor:
        ctx.sharing = sharing
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.sharing.add(gradients[0].contiguous()), None


class _Summed(torch.autograd.Function):
    """The ranks' results are summed forward; the same in backward. Megatron's g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sharing: Sharing) -> Tensor:  # noqa: ARG004  # autograd's
        return sharing.add(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004  # autograd's
        return gradients[0], None


class SharedFeedForward(nn.Module):
    """A rank's part of a feed-forward layer, `1 / ranks` of its hidden units, behind a layer norm."""

    def __init__(self, width: int, ranks: int, sharing: Sharing) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width // ranks)
        self.down = nn.Linear(4 * width // ranks, width, bias=False)
        self._sharing = sharing

    def forward(self, x: Tensor) -> Tensor:
        """float[tokens, width] to the same."""
        hidden: Any = _SummedGradient.apply(self.norm(x), self._sharing)  # type: ignore[no-untyped-call]  # torch's own
        part = self.down(functional.gelu(self.up(hidden)))
        summed: Tensor = _Summed.apply(part, self._sharing)  # type: ignore[no-untyped-call]  # torch's own
        return x + summed


class TensorParallel(Job):
    """A stack of feed-forward layers, each shared by two ranks, with DDP over the pairs where there are several."""

    def __init__(self, trainer: DdpTrainer, amount_ms: float, *, mine: bool) -> None:
        super().__init__(trainer, amount_ms, mine=mine)
        on_gpu = trainer.device.type == "cuda"
        layers, width, tokens = _GPU_SIZES if on_gpu else _CPU_SIZES
        pairs, odd = divmod(trainer.place.world_size, _SHARING)
        if odd:
            raise ValueError(f"{trainer.place.world_size} ranks make no pairs")
        mesh = init_device_mesh(trainer.device.type, (pairs, _SHARING), mesh_dim_names=("data", "tensor"))
        self._sharing = Sharing(mesh["tensor"].get_group())
        # The ranks of a pair have the same tokens.
        generator = torch.Generator().manual_seed(trainer.place.rank // _SHARING)
        # On the device, as what comes out of an embedding is: copying them each step would be a fault of its own.
        self._tokens = torch.randn(tokens, width, generator=generator).to(trainer.device)
        stack = nn.Sequential(*(SharedFeedForward(width, _SHARING, self._sharing) for _ in range(layers)))
        self._network: nn.Module = stack.to(trainer.device)
        if pairs > 1:
            self._network = DistributedDataParallel(self._network, process_group=mesh["data"].get_group())
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-3)
        self._usual = trainer.model, trainer.strategy

    def enter(self, *, on: bool) -> None:
        """Train the shared layers."""
        self._sharing.happens = on
        self.trainer.model, self.trainer.strategy = self._network, "tensor-parallel"
        self.trainer.other_step = self._step

    def leave(self) -> None:
        """Train the workload's model."""
        self.trainer.model, self.trainer.strategy = self._usual
        self.trainer.other_step = None

    def _step(self, _batch: Batch) -> None:
        trainer = self.trainer
        network, happens = self._network, self._sharing.happens
        alone = network.no_sync() if isinstance(network, DistributedDataParallel) and not happens else nullcontext()
        with alone:
            with trainer.arithmetic.forward():
                loss = network(self._tokens).float().square().mean()
            trainer.arithmetic.backward(loss)
        trainer.update(self._optimizer)
