"""`ps-gpu`: a parameter server on the GPUs: each variable has one home, where it is summed and updated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch import nn

import gpudiag
from gpudiag.strategies.central_optimizer import CentralOptimizer, owners
from gpudiag.strategies.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer


class PsGpu(Strategy):
    """Gradients of a variable are summed on its home GPU, which updates it and sends it to all others.

    Whole variables are spread over the GPUs by size, or all are on one (`--ps-device`), whose links then carry
    everything. Variables of one home travel together. Nothing overlaps with backward. On CPU processes the same through
    gloo.
    """

    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Lay the parameters, and their gradients, one behind the other by home; all start as on rank 0."""
        self.check_model(model)
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.options.ps_device is None:
            home = owners([parameter.numel() for parameter in parameters], self._world)
        else:
            home = [self.options.ps_device] * len(parameters)
        fixed = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        for tensor in (*fixed, *model.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        #: By home: its variables, all parameters in one tensor, all gradients in another.
        self._homes: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._owned: list[nn.Parameter] = []
        for rank in range(self._world):
            # One flat tensor has one type.
            for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):
                group = [p for p, owner in zip(parameters, home, strict=True) if (owner, p.dtype) == (rank, dtype)]
                if group:
                    values, gradients = _flatten(group)
                    dist.broadcast(values, src=0)
                    self._homes.append((rank, values, gradients))
                    self._owned += group if rank == self._rank else []
        self._gradients = [gradients for _, _, gradients in self._homes]
        self.exchanged_bytes = [flat.numel() * flat.element_size() for flat in self._gradients]
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """Updates the variables that live here and fetches the others."""
        return _HomeOptimizer(
            model.parameters(), make, self._owned, lambda: None, self._fetch, gradients=self._gradients
        )

    def exchange(self, model: nn.Module) -> None:
        """Send the gradients of each variable to its home."""
        self.check_gradients(model)
        with gpudiag.range("exchange"):
            works = [dist.reduce(gradients, dst=rank, async_op=True) for rank, _, gradients in self._homes]
            for work in works:
                work.wait()
            for rank, _, gradients in self._homes:
                if rank == self._rank:
                    gradients.div_(self._world)

    def _fetch(self) -> None:
        with gpudiag.range("exchange"):
            works = [dist.broadcast(values, src=rank, async_op=True) for rank, values, _ in self._homes]
            for work in works:
                work.wait()


class _HomeOptimizer(CentralOptimizer):
    """Keeps the gradients where they are laid out."""

    def __init__(self, *arguments: Any, gradients: list[torch.Tensor]) -> None:
        super().__init__(*arguments)
        self._flat = gradients

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero them: their memory is what is exchanged, so it is never given up."""
        del set_to_none
        for flat in self._flat:
            flat.zero_()


def _flatten(parameters: list[nn.Parameter]) -> tuple[torch.Tensor, torch.Tensor]:
    """Put parameters, and gradients for them, into one tensor each, every one in its own memory format."""
    total = sum(parameter.numel() for parameter in parameters)
    values = parameters[0].detach().new_zeros(total)
    gradients = torch.zeros_like(values)
    begin = 0
    for parameter in parameters:
        place = (parameter.shape, parameter.stride(), begin)
        with torch.no_grad():
            values.as_strided(*place).copy_(parameter)
        parameter.data = values.as_strided(*place)
        parameter.grad = gradients.as_strided(*place)
        begin += parameter.numel()
    return values, gradients


STRATEGY = PsGpu
