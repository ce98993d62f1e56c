"""`trivial`: one weight per input value, 150,529 parameters on 224x224 images; and the same in any workload's place.

What it trains takes no time, so that what remains of a step is its input: reading, putting together, copying and
preparing batches. tf_cnn_benchmarks' `trivial` has two more layers, 4.1 million parameters that see a single number.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import ImageWorkload, Workload


class TrivialModel(nn.Module):
    """Each sample's values, weighted and summed. `inputs` is how many values a sample has."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.sum = nn.Linear(inputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Anything of n samples to float[n, 1]."""
        values: Tensor = self.sum(x.reshape(len(x), -1).to(self.sum.weight.dtype))
        return values


class Trivial(Workload):
    """What both uses of the trivial model share."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002  # targets are copied, and that is all
        """Mean of the output: its gradient is as good as any, and no number of steps makes it overflow."""
        return output.float().mean()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(parameters, lr=1e-6)


class TrivialImages(Trivial, ImageWorkload):
    """Images of the usual size, and hardly any computing."""

    def model(self) -> nn.Module:
        """One weight per pixel and colour."""
        return TrivialModel(3 * self.side * self.side)


class InputOnly(Trivial):
    """Another workload's samples, copied and prepared as ever, and the trivial model in place of its own.

    Args:
        whole: the workload whose input is to be tested.
    """

    def __init__(self, whole: Workload) -> None:
        super().__init__(on_gpu=whole.on_gpu)
        self.pool = whole.pool
        self.channels_last = whole.channels_last
        self._whole = whole

    def model(self) -> nn.Module:
        """One weight per value of a sample."""
        inputs, _ = self.samples(1, torch.Generator().manual_seed(0))
        return TrivialModel(self.prepare(inputs).numel())

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The other workload's."""
        return self._whole.samples(count, generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """The other workload's."""
        return self._whole.prepare(inputs)
