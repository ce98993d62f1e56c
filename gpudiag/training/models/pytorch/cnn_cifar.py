"""`cnn-cifar`: the convolutional network of Keras's CIFAR-10 example, 1,250,858 parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import CifarWorkload


class CnnCifar(CifarWorkload):
    """So little to compute that its step is hardly more than launching it and feeding it."""

    def model(self) -> nn.Module:
        """Four convolutions, of which the second of each pair pads nothing, and two fully connected layers."""
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 6 * 6, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, CifarWorkload.classes),
        )

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """RMSprop, as the example trains it."""
        return torch.optim.RMSprop(parameters, lr=1e-4)
