"""Define the interface of PyTorch workloads: model, samples, loss and optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer


class Workload(ABC):
    """Training of a model on random samples, sized for a GPU (`on_gpu`) or for a CPU process."""

    #: Number of distinct samples in memory, from which batches are collated.
    pool = 512
    #: PyTorch's memory format of inputs and weights for the option `nhwc`.
    channels_last: torch.memory_format = torch.channels_last

    def __init__(self, *, on_gpu: bool, depth: int = 0) -> None:
        self.on_gpu = on_gpu
        #: Number of layers if the model exists in several depths, else 0.
        self.depth = depth

    @abstractmethod
    def model(self) -> nn.Module:
        """Build and initialise the model on the CPU."""

    @abstractmethod
    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make `count` inputs and targets, stacked along the first dimension, as stored on disk."""

    def prepare(self, inputs: Tensor) -> Tensor:
        """Convert a batch of inputs on the device to the model's input, for example by scaling bytes."""
        return inputs

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the scalar to minimise, by default cross-entropy over classes."""
        return functional.cross_entropy(output, target)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return the optimizer, by default momentum SGD."""
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


class ImageWorkload(Workload):
    """Training on RGB images with one byte per value. Each image has a class."""

    #: Number of pixels along each side.
    side = 224
    #: Number of pixels along each side on a CPU; None for `side`.
    cpu_side: int | None = None
    classes = 1000

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make images uint8[count, 3, side, side] and classes int64[count]."""
        side = self.side if self.on_gpu or self.cpu_side is None else self.cpu_side
        images = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
        return images, torch.randint(0, self.classes, (count,), generator=generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Scale bytes to floats with a mean of about 0 and a variance of about 1."""
        return inputs.to(torch.float32).sub_(127.5).div_(73.9)


class CifarWorkload(ImageWorkload):
    """Training on images of CIFAR-10's shape: 32x32 pixels in ten classes."""

    side = 32
    classes = 10


def initialise_convolutions(model: nn.Module) -> None:
    """Initialise all convolutions by the method of K. He et al. (2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
