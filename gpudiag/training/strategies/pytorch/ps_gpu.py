"""Implement `ps-gpu`: a parameter server on the GPUs. A variable's home GPU sums its gradients and updates it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.benchmarks.prediction import Candidate
from gpudiag.prediction.cost import ONE_DEVICE, Cost
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from gpudiag.model.benchmarks.prediction import Compress
    from gpudiag.model.facts import Facts
    from gpudiag.model.job import CommunicationOptions
    from gpudiag.prediction.situation import Situation


class PsGpu(PytorchStrategy):
    """Sum the gradients of each variable on its home GPU, which updates the variable and broadcasts it.

    Whole variables are distributed over the GPUs by size. With `--ps-device` one GPU is the home of all variables, and
    all communication passes over its links. Variables with the same home are sent together. Communication does not
    overlap with backward. CPU processes use gloo.
    """

    name = "ps-gpu"
    summary = "Parameter server on the GPUs: each variable is summed and updated on one of them, and sent to all."
    list_order, preference_rank = 50, 50
    least_devices = 2
    scales_losses = False
    launched_ahead = True
    takes = ("accumulate", "ps_device", "nccl_algo")
    backend = None

    def wrap(self, model: nn.Module) -> nn.Module:
        """Broadcast rank 0's model. Combine each home's parameters in one tensor, and their gradients in another."""
        from torch import distributed as dist

        from gpudiag.training.strategies.central_optimizer import owners

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
        #: (rank of the home, tensor of its parameters, tensor of their gradients) for each home and type.
        self._homes: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._owned: list[nn.Parameter] = []
        for rank in range(self._world):  # all ranks broadcast in the same order
            here = [parameter for parameter, owner in zip(parameters, home, strict=True) if owner == rank]
            self._owned += here if rank == self._rank else []
            for values, gradients in _flattened_by_type(here):
                dist.broadcast(values, src=0)
                self._homes.append((rank, values, gradients))
        self._gradients = [gradients for _, _, gradients in self._homes]
        self.exchanged_bytes = [flat.numel() * flat.element_size() for flat in self._gradients]
        return model

    def optimizer(self, model: nn.Module, make: Callable[[Iterable[nn.Parameter]], Optimizer]) -> Optimizer:
        """Make an optimizer that updates this rank's variables, and receives the variables of other ranks."""
        from gpudiag.training.strategies.central_optimizer import CentralOptimizer

        return CentralOptimizer(model.parameters(), make, self._owned, lambda: None, self._fetch, kept=self._gradients)

    def exchange(self, model: nn.Module) -> None:
        """Average the gradients of each variable on its home GPU."""
        from torch import distributed as dist

        self.check_gradients(model)
        with gpudiag.range("exchange"):
            for handle in [dist.reduce(gradients, dst=rank, async_op=True) for rank, _, gradients in self._homes]:
                handle.wait()
            for rank, _, gradients in self._homes:
                if rank == self._rank:
                    gradients.div_(self._world)

    def _fetch(self) -> None:
        from torch import distributed as dist

        with gpudiag.range("exchange"):
            for handle in [dist.broadcast(values, src=rank, async_op=True) for rank, values, _ in self._homes]:
                handle.wait()

    @classmethod
    def check(cls, options: CommunicationOptions, *, devices: int, nodes: int, precision: str | None) -> None:
        """Raise UsageError if the device of `--ps-device` does not exist, and the errors of `Strategy.check`."""
        if options.ps_device is not None and options.ps_device >= devices:
            raise UsageError(
                f"--ps-device {options.ps_device}: there are devices 0 to {devices - 1}", "Choose one of them."
            )
        super().check(options, devices=devices, nodes=nodes, precision=precision)

    @classmethod
    def candidates(cls, compress: Compress | None) -> tuple[Candidate, ...]:
        """Return two candidates: variables spread over all devices, and all variables on the first device."""
        return Candidate(strategy=cls.name), Candidate(strategy=cls.name, ps_device=0)

    @classmethod
    def why_not(cls, facts: Facts, candidate: Candidate, devices: int) -> str | None:
        """Return why a candidate is not recommended; None without a reason. On CPUs no candidate is recommended."""
        if not any(gpu.visible for gpu in facts.gpus):
            return "there is no GPU to hold the parameters"
        return super().why_not(facts, candidate, devices)

    @classmethod
    def cost(cls, now: Situation, candidate: Candidate) -> Cost:
        """Return the cost of reducing gradients on their homes after backward, and of broadcasting parameters.

        `now` has the model, the number of devices and the rates of the machine. `candidate.ps_device` is the home of
        all variables; None if variables are spread over all GPUs.
        """
        count = now.devices
        if count < 2:
            return ONE_DEVICE
        total = now.model.total_bytes
        spread = candidate.ps_device is None
        exchange_ms = now.rooted_ms(total, spread=spread)
        # Backward adds gradients to zeros in the tensor that is sent, and so reads and writes the tensor once more.
        copy_ms = 2 * now.on_device_ms(total)
        # If variables are spread, each GPU updates only its own.
        saved_ms = now.compute.update_ms * (count - 1) / count if spread else 0.0
        where = f"{count} GPUs share the parameters" if spread else f"all parameters are on GPU {candidate.ps_device}"
        return Cost(
            exposed_ms=max(0.0, exchange_ms + copy_ms - saved_ms),
            exchange_ms=exchange_ms,
            reason=f"{where}: {total / 1e6:.0f} MB to their homes and back, {exchange_ms:.1f} ms after backward",
        )


def _flattened_by_type(parameters: list[nn.Parameter]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (tensor of all parameters, tensor of their gradients) for each type of the parameters."""
    types = dict.fromkeys(parameter.dtype for parameter in parameters)
    return [_flatten([parameter for parameter in parameters if parameter.dtype == dtype]) for dtype in types]


def _flatten(parameters: list[nn.Parameter]) -> tuple[torch.Tensor, torch.Tensor]:
    """Make parameters of one type views of a flat tensor, and their gradients views of another; return both tensors."""
    import torch

    total = sum(parameter.numel() for parameter in parameters)
    values = parameters[0].detach().new_zeros(total)
    gradients = torch.zeros_like(values)
    begin = 0
    for parameter in parameters:
        view = (parameter.shape, parameter.stride(), begin)
        with torch.no_grad():
            values.as_strided(*view).copy_(parameter)
        parameter.data = values.as_strided(*view)
        parameter.grad = gradients.as_strided(*view)
        begin += parameter.numel()
    return values, gradients
