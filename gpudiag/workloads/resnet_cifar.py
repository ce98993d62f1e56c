"""`resnet20-cifar`: the ResNet-20 of K. He et al., "Deep Residual Learning for Image Recognition", section 4.2.

269,722 parameters: shortcuts that change the shape have none (option A: every other pixel, new channels zero), and the
last layer has a bias. tf_cnn_benchmarks counts 271,164 for its own `resnet20`, which is built differently at these two
places, so that figures of the two are close but not of the same model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from gpudiag.workloads.workload import Workload, image_samples, scaled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SIDE = 32
CLASSES = 10
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.widening = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """float[n, inputs, h, w] to float[n, outputs, h / stride, w / stride]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.widening:
            half = self.widening // 2
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return functional.relu(y + x)


class ResNetCifar(nn.Module):
    """6n + 2 layers: a convolution, three stages of n blocks each, and a fully connected layer."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        stages: list[nn.Module] = []
        inputs = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for index in range(blocks):
                stages.append(Block(inputs, width, stride=2 if stage > 0 and index == 0 else 1))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(WIDTHS[-1], CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 32, 32] to float[n, 10]."""
        x = self.stages(functional.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class ResNet20Cifar(Workload):
    """Small kernels and little data: what it shows is mostly how fast the host can launch."""

    def model(self) -> nn.Module:
        """20 layers."""
        return ResNetCifar(blocks=3)

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """uint8[count, 3, 32, 32] and classes."""
        return image_samples(count, SIDE, CLASSES, generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Bytes to floats."""
        return scaled(inputs)


WORKLOAD = ResNet20Cifar
