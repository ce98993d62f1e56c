"""`mlp`: 8000-4000-2000-500-300-1, all fully connected: 41,157,101 parameters, 165 MB of gradients in fp32."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import Workload

WIDTHS = (8000, 4000, 2000, 500, 300, 1)


class Mlp(Workload):
    """A regression with ReLU between the layers: cheap to compute for its size, so that the exchange dominates."""

    def model(self) -> nn.Module:
        """The layers in order."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """float32[count, 8000] and float32[count, 1]."""
        return torch.randn(count, WIDTHS[0], generator=generator), torch.randn(count, 1, generator=generator)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error."""
        return functional.mse_loss(output, target)
