"""`copies`: replicas of one process, whose gradients meet by plain copies between devices, without NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gpudiag
from gpudiag.training.strategies.pytorch_strategy import PytorchStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from gpudiag.model.benchmarks.prediction import Candidate, Compress


class Copies(PytorchStrategy):
    """Each device has a replica of its own; gradients are copied to the first, added there, and copied back to all.

    This is what TensorFlow 1's benchmarks called replicated variables without NCCL: every replica updates itself, and
    the copies are the framework's own, which the driver stages through host memory where devices have no peer access.
    Unlike in `data-parallel` no parameters travel, and gradients do after backward. Nothing overlaps with it, and the
    first device's link carries all: it is here for the figures that were published with it.
    """

    name = "copies"
    summary = "Replicas in one process, without NCCL: gradients are copied to the first device, added, and copied back."
    listed, special = 65, 75
    one_process = True
    least_devices = 2

    def wrap(self, model: nn.Module) -> nn.Module:
        """A replica on each of the `devices`; they take equal parts of a batch, and the first has all outputs."""
        import torch

        self.check_model(model)
        kind = self.device.type
        others = [torch.device(kind, number) if kind != "cpu" else self.device for number in range(1, self.devices)]
        return _replicated(model, (self.device, *others))

    def exchange(self, model: nn.Module) -> None:
        """Add the gradients on the first device, for each replica has those of its share of the mean; send the sums."""
        import torch

        self.check_gradients(model)
        replicas: Any = model.get_submodule("replicas")
        together = zip(*(replica.parameters() for replica in replicas), strict=True)
        trained = [[one.grad for one in same] for same in together if same[0].requires_grad]
        with gpudiag.range("exchange"), torch.no_grad():
            for first, *others in trained:
                for gradient in others:
                    first.add_(gradient.to(first.device, non_blocking=True))
            for first, *others in trained:
                for gradient in others:
                    gradient.copy_(first, non_blocking=True)
        self.exchanged_bytes = [first.numel() * first.element_size() for first, *_ in trained]

    @classmethod
    def candidates(cls, compress: Compress | None) -> tuple[Candidate, ...]:
        """None: it wins nowhere, and nobody knows what it costs on GPUs."""
        return ()


def _replicated(model: nn.Module, devices: Sequence[torch.device]) -> nn.Module:
    import copy

    import torch
    from torch import nn

    class Replicas(nn.Module):
        """The model as it was, and its copies on the other devices."""

        def __init__(self) -> None:
            super().__init__()
            self.replicas = nn.ModuleList([model, *(copy.deepcopy(model).to(device) for device in devices[1:])])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # One thread launches for all devices, as autocasting is each thread's own; devices work beside each other.
            parts = zip(self.replicas, x.chunk(len(devices)), devices, strict=True)
            outputs = [replica(part.to(device, non_blocking=True)) for replica, part, device in parts]
            return torch.cat([output.to(devices[0], non_blocking=True) for output in outputs])

    return Replicas()


STRATEGY = Copies
