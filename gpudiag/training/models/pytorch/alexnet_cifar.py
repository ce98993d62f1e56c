"""`alexnet-cifar`: tf_cnn_benchmarks' AlexNet for CIFAR-10, 1,756,426 parameters.

Two convolutions with local response normalisation and three fully connected layers, as in TensorFlow's
tutorial on CIFAR-10.
tf_cnn_benchmarks logs 1,756,620: it counts an eleventh class and its step counter.
"""

from __future__ import annotations

from torch import nn

from gpudiag.training.models.pytorch.workload import CifarWorkload


def _normalisation() -> nn.Module:
    """Over nine channels; PyTorch divides `alpha` by their number, TensorFlow does not."""
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


class AlexNetCifar(CifarWorkload):
    """7 MB of gradients for few kernels: of tf_cnn_benchmarks' networks for CIFAR-10 the one that scaled worst."""

    def model(self) -> nn.Module:
        """5 layers with weights; images of 32 x 32 become 8 x 8 before the fully connected ones."""
        return nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            _normalisation(),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            _normalisation(),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 384),
            nn.ReLU(inplace=True),
            nn.Linear(384, 192),
            nn.ReLU(inplace=True),
            nn.Linear(192, CifarWorkload.classes),
        )
