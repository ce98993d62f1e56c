"""What a workload is: a model, its samples, its loss, its optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer


class Workload(ABC):
    """One model to train, on samples made up once: a pool in memory from which batches are put together.

    Args:
        on_gpu: sized for a GPU; otherwise for a CPU process.
    """

    #: Distinct samples in the pool.
    pool = 512

    #: What `nhwc` means for its inputs and weights.
    channels_last: torch.memory_format = torch.channels_last

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu

    @abstractmethod
    def model(self) -> nn.Module:
        """The model, on the CPU, freshly initialised."""

    @abstractmethod
    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` inputs and their targets, stacked along the first dimension, as they would come from disk."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Make a batch of inputs, on its device, what the model takes: scaling of bytes, and the like."""
        return inputs

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The scalar to minimise; cross-entropy over classes unless a workload says otherwise."""
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """The optimizer; momentum SGD unless a workload says otherwise."""
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


class ImageWorkload(Workload):
    """RGB images as bytes, and a class for each."""

    #: Pixels along each side.
    side = 224
    #: On a CPU; None for the same.
    cpu_side: int | None = None
    classes = 1000

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """uint8[count, 3, side, side] and int64[count]."""
        side = self.side if self.on_gpu or self.cpu_side is None else self.cpu_side
        images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
        return images, torch.randint(0, self.classes, (count,), generator=generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Bytes to floats of about zero mean and unit variance, as image pipelines do last."""
        return inputs.to(torch.float32).sub_(127.5).div_(73.9)


class CifarWorkload(ImageWorkload):
    """Images of CIFAR-10's shape: 32x32 in ten classes."""

    side = 32
    classes = 10


def initialise_convolutions(model: nn.Module) -> None:
    """He's initialisation (K. He et al., 2015) of all convolutions."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
