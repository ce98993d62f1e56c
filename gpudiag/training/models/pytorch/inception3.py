"""`inception3`: Inception-v3 (C. Szegedy et al., "Rethinking the Inception Architecture", 2015), no auxiliary head.

23,834,568 parameters. Keras counts 23,851,784 for the same convolutions: its normalisations have no scales (17,216
fewer), and their running means and variances (34,432) count as parameters there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import ImageWorkload, initialise_convolutions

CLASSES = 1000


def convolution(
    inputs: int, outputs: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int | tuple[int, int] = 0
) -> nn.Module:
    """Convolution, normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001),
        nn.ReLU(inplace=True),
    )


def row(inputs: int, outputs: int, length: int) -> nn.Module:
    """A 1 x length convolution that keeps the shape."""
    return convolution(inputs, outputs, (1, length), padding=(0, length // 2))


def column(inputs: int, outputs: int, length: int) -> nn.Module:
    """A length x 1 convolution that keeps the shape."""
    return convolution(inputs, outputs, (length, 1), padding=(length // 2, 0))


class Branches(nn.Module):
    """The same input through each branch, the outputs side by side along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, c, h, w] to float[n, sum of the branches' channels, h', w']."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def pooled(inputs: int, outputs: int) -> nn.Module:
    """The pooling branch of the blocks that keep the shape."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), convolution(inputs, outputs, 1))


def block_35(inputs: int, pool: int) -> nn.Module:
    """On 35x35 maps: figure 5 of the paper, with one 5x5 left."""
    return Branches(
        convolution(inputs, 64, 1),
        nn.Sequential(convolution(inputs, 48, 1), convolution(48, 64, 5, padding=2)),
        nn.Sequential(convolution(inputs, 64, 1), convolution(64, 96, 3, padding=1), convolution(96, 96, 3, padding=1)),
        pooled(inputs, pool),
    )


def block_17(width: int) -> nn.Module:
    """On 17x17 maps of 768 channels: figure 6, 7x7 convolutions as rows and columns."""
    return Branches(
        convolution(768, 192, 1),
        nn.Sequential(convolution(768, width, 1), row(width, width, 7), column(width, 192, 7)),
        nn.Sequential(
            convolution(768, width, 1),
            column(width, width, 7),
            row(width, width, 7),
            column(width, width, 7),
            row(width, 192, 7),
        ),
        pooled(768, 192),
    )


def block_8(inputs: int) -> nn.Module:
    """On 8x8 maps: figure 7, rows and columns beside each other."""
    return Branches(
        convolution(inputs, 320, 1),
        nn.Sequential(convolution(inputs, 384, 1), Branches(row(384, 384, 3), column(384, 384, 3))),
        nn.Sequential(
            convolution(inputs, 448, 1),
            convolution(448, 384, 3, padding=1),
            Branches(row(384, 384, 3), column(384, 384, 3)),
        ),
        pooled(inputs, 192),
    )


def to_17(inputs: int) -> nn.Module:
    """From 35x35 to 17x17."""
    return Branches(
        convolution(inputs, 384, 3, stride=2),
        nn.Sequential(convolution(inputs, 64, 1), convolution(64, 96, 3, padding=1), convolution(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def to_8(inputs: int) -> nn.Module:
    """From 17x17 to 8x8."""
    return Branches(
        nn.Sequential(convolution(inputs, 192, 1), convolution(192, 320, 3, stride=2)),
        nn.Sequential(
            convolution(inputs, 192, 1), row(192, 192, 7), column(192, 192, 7), convolution(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


class Inception(nn.Module):
    """The stem, eleven blocks and the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            convolution(3, 32, 3, stride=2),
            convolution(32, 32, 3),
            convolution(32, 64, 3, padding=1),
            nn.MaxPool2d(3, stride=2),
            convolution(64, 80, 1),
            convolution(80, 192, 3),
            nn.MaxPool2d(3, stride=2),
            block_35(192, 32),
            block_35(256, 64),
            block_35(288, 64),
            to_17(288),
            *(block_17(width) for width in (128, 160, 160, 192)),
            to_8(768),
            block_8(1280),
            block_8(2048),
        )
        self.classifier = nn.Linear(2048, CLASSES)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 299, 299] to float[n, 1000]."""
        x = functional.adaptive_avg_pool2d(self.features(x), 1)
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class Inception3(ImageWorkload):
    """Many kernels of all shapes, and much compute per byte exchanged."""

    side = 299

    def model(self) -> nn.Module:
        """48 layers deep."""
        return Inception()
