"""`densenet40-cifar`, `densenet100-cifar`: DenseNets of growth rate 12 (G. Huang et al., 2017), no bottlenecks.

1,019,722 and 6,979,642 parameters, as in the paper (1.0 and 7.0 million). tf_cnn_benchmarks' of the same names count
364,772 and 2,259,652: there a transition narrows its input to 24 channels, where the paper's keeps them all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import CifarWorkload

GROWTH = 12
FIRST = 16
STAGES = 3


class DenseLayer(nn.Module):
    """Adds GROWTH channels, made from all that came before in its stage."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, inputs, h, w] to float[n, inputs + GROWTH, h, w]."""
        return torch.cat((x, self.conv(functional.relu(self.norm(x)))), dim=1)


class DenseNetCifar(nn.Module):
    """A convolution, three stages of dense layers with transitions between them, and a fully connected layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, FIRST, 3, padding=1, bias=False)]
        width = FIRST
        for stage in range(STAGES):
            for _ in range(layers):
                parts.append(DenseLayer(width))
                width += GROWTH
            parts += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            if stage < STAGES - 1:
                parts += [nn.Conv2d(width, width, 1, bias=False), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Linear(width, CifarWorkload.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 32, 32] to float[n, 10]."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class DenseNetCifarTraining(CifarWorkload):
    """Memory-bound: each layer reads all channels of its stage to make twelve more.

    Args:
        depth: 3n + 4 layers, those with weights.
        on_gpu: sized for a GPU; otherwise for a CPU process.
    """

    def __init__(self, depth: int, *, on_gpu: bool) -> None:
        super().__init__(on_gpu=on_gpu)
        self._layers = (depth - 4) // 3

    def model(self) -> nn.Module:
        """Three stages of n dense layers each."""
        return DenseNetCifar(self._layers)
