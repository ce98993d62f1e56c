"""Define networks of fully connected layers: `mlp`, and `trivial`, which can also replace another workload's model.

- `mlp`, 8000-4000-2000-500-300-1: 41,157,101 parameters, 165 MB of gradients in fp32.
- `trivial`: one weight per input value and a bias; 150,529 parameters on 224x224 images. Training it takes almost no
  time, so a step consists of input: reading, collating, copying and preparing batches. tf_cnn_benchmarks' `trivial`
  has two more layers with 4.1 million parameters, whose input is a single number.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import ImageWorkload, Workload

MLP_WIDTHS = (8000, 4000, 2000, 500, 300, 1)


class Mlp(Workload):
    """Regression with ReLU between the layers, and with so little compute for its size that communication dominates."""

    def model(self) -> nn.Module:
        """Build the layers in order."""
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(MLP_WIDTHS):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])  # without ReLU after the last layer

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make inputs float32[count, 8000] and targets float32[count, 1]."""
        return torch.randn(count, MLP_WIDTHS[0], generator=generator), torch.randn(count, 1, generator=generator)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error."""
        return functional.mse_loss(output, target)


class TrivialModel(nn.Module):
    """Map each sample to a weighted sum of its `inputs` values."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.sum = nn.Linear(inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map n samples of any shape to float[n, 1]."""
        values: Tensor = self.sum(x.reshape(len(x), -1).to(self.sum.weight.dtype))
        return values


class Trivial(Workload):
    """Loss and optimizer of the trivial model."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002  # targets are only copied
        """Return the mean of the output. Training with this loss never overflows."""
        return output.float().mean()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(parameters, lr=1e-6)


class TrivialImages(Trivial, ImageWorkload):
    """The trivial model on images of the usual size."""

    def model(self) -> nn.Module:
        """Build a model with one weight per pixel and colour."""
        return TrivialModel(3 * self.side * self.side)


class InputOnly(Trivial):
    """The trivial model on the samples of another workload. The samples are copied and prepared as usual."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(on_gpu=workload.on_gpu)
        self.pool = workload.pool
        self.channels_last = workload.channels_last
        self._workload = workload

    def model(self) -> nn.Module:
        """Build a model with one weight per value of a prepared sample."""
        inputs, _ = self.samples(1, torch.Generator().manual_seed(0))
        return TrivialModel(self.prepare(inputs).numel())

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make the other workload's samples."""
        return self._workload.samples(count, generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Prepare samples as the other workload does."""
        return self._workload.prepare(inputs)
