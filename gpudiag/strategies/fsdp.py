"""`fsdp`: PyTorch's FSDP2 (`fully_shard`): parameters, gradients and optimizer state are spread over the processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gpudiag.strategies.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

#: A part of a container with fewer parameters than this is gathered together with what is around it.
_LEAST_PARAMETERS = 100_000


class Fsdp(Strategy):
    """Each process keeps 1/n of everything; parameters are gathered before use and gradients reduce-scattered after.

    The parts of `nn.Sequential` and `nn.ModuleList` (blocks, stages) are sharded one by one, so that gathering one runs
    beside computing another. What travels is three times the parameters per step against twice in all-reduce, for n
    times less memory. `--compress` is FSDP's `reduce_dtype`. In traces the exchange has FSDP's own ranges
    (`FSDP::all_gather`, `FSDP::post_backward_reduce`).
    """

    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Shard the model in place."""
        self.check_model(model)
        compress = self.options.compress
        policy = MixedPrecisionPolicy(reduce_dtype=_DTYPES[compress]) if compress else MixedPrecisionPolicy()
        mesh = init_device_mesh(self.device.type, (torch.distributed.get_world_size(),))
        for parameter in model.parameters():
            # FSDP knows no other layout of weights; channels-last inputs stay what they are.
            parameter.data = parameter.data.contiguous()
        for tensor in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(tensor.detach(), src=0)
        units = [*parts(model), model]
        counted = 0
        for unit in units:
            whole = sum(p.numel() * p.element_size() for p in unit.parameters())
            if unit is model:
                whole -= counted
            counted += whole
            self.exchanged_bytes.append(whole)
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        self.exchanged_bytes.reverse()  # the order of backward
        self._model = cast("FSDPModule", model)
        return model

    def accumulating(self) -> AbstractContextManager[object]:
        """Keep whole gradients, and reduce them with the last batch."""
        return self._keeping()

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        self._model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._model.set_requires_gradient_sync(True)

    def exchange(self, model: nn.Module) -> None:
        """All of it happened in forward and backward."""
        self.check_gradients(model)


def parts(model: nn.Module) -> list[nn.Module]:
    """The outermost parts of containers in the model that are worth sharding by themselves, innermost last."""
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            big = sum(p.numel() for p in child.parameters()) >= _LEAST_PARAMETERS
            container = isinstance(child, nn.Sequential | nn.ModuleList)
            if big and isinstance(module, nn.Sequential | nn.ModuleList) and not container:
                found.append(child)
            else:
                look(child)

    look(model)
    return found


STRATEGY = Fsdp
