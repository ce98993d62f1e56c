"""Define networks for CIFAR-10: ResNets, DenseNets, an AlexNet and the CNN of Keras's example.

- `resnetN-cifar`: K. He et al., "Deep Residual Learning for Image Recognition", section 4.2, with shortcuts of option A
  (take every other pixel, and add channels of zeros) and a bias in the last layer. Numbers of parameters: 269,722 with
  20 layers, 464,154 with 32, 658,586 with 44, 853,018 with 56 and 1,727,962 with 110. tf_cnn_benchmarks logs 271,164
  (466,492; 661,820; 857,148; 1,736,124) for these networks, because it also counts running means and variances, an
  eleventh class and its step counter.
- `densenetN-cifar`: DenseNets of growth rate 12 without bottlenecks (G. Huang et al., 2017). Parameters: 1,019,722 with
  40 layers, 6,979,642 with 100. tf_cnn_benchmarks counts 364,772 and 2,259,652, because its transitions narrow their
  input to 24 channels, while the paper's transitions keep all channels.
- `cnn-cifar`, 1,250,858 parameters: the convolutional network of Keras's CIFAR-10 example.
- `alexnet-cifar`, 1,756,426 parameters: tf_cnn_benchmarks' AlexNet, from TensorFlow's CIFAR-10 tutorial.
  tf_cnn_benchmarks logs 1,756,620, because it also counts an eleventh class and its step counter.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import CifarWorkload, initialise_convolutions

RESNET_WIDTHS = (16, 32, 64)
GROWTH = 12
DENSENET_FIRST = 16
DENSENET_STAGES = 3


class ResNetCifarBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut that has no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.widening = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, inputs, h, w] to float[n, outputs, h / stride, w / stride]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.widening:
            half = self.widening // 2  # shortcut of option A: add half of the channels before, half after
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, half))
        return functional.relu(y + x)


class ResNetCifar(nn.Module):
    """6n + 2 layers: a convolution, three stages of n blocks (`blocks`) each, and a fully connected layer."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, RESNET_WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(RESNET_WIDTHS[0])
        stages: list[nn.Module] = []
        inputs = RESNET_WIDTHS[0]
        for stage, width in enumerate(RESNET_WIDTHS):
            for index in range(blocks):
                stages.append(ResNetCifarBlock(inputs, width, stride=2 if stage > 0 and index == 0 else 1))
                inputs = width
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(RESNET_WIDTHS[-1], CifarWorkload.classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, 32, 32] to float[n, 10]."""
        x = self.stages(functional.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class ResNetCifarTraining(CifarWorkload):
    """ResNet with `depth` = 6n + 2 layers and small kernels, so that host launches dominate the step time."""

    def model(self) -> nn.Module:
        """Build the network with `depth` layers."""
        return ResNetCifar((self.depth - 2) // 6)


class DenseLayer(nn.Module):
    """Compute GROWTH channels from all channels of the input, and append them to the input."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, inputs, h, w] to float[n, inputs + GROWTH, h, w]."""
        return torch.cat((x, self.conv(functional.relu(self.norm(x)))), dim=1)


class DenseNetCifar(nn.Module):
    """A convolution, three stages of `layers` dense layers each with transitions, and a fully connected layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        features: list[nn.Module] = [nn.Conv2d(3, DENSENET_FIRST, 3, padding=1, bias=False)]
        width = DENSENET_FIRST
        for stage in range(DENSENET_STAGES):
            for _ in range(layers):
                features.append(DenseLayer(width))
                width += GROWTH
            features += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            if stage < DENSENET_STAGES - 1:
                features += [nn.Conv2d(width, width, 1, bias=False), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(width, CifarWorkload.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, 32, 32] to float[n, 10]."""
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class DenseNetCifarTraining(CifarWorkload):
    """DenseNet with `depth` = 3n + 4 layers, which is memory-bound: each layer reads all channels of its stage."""

    def model(self) -> nn.Module:
        """Build the network with `depth` layers."""
        return DenseNetCifar((self.depth - 4) // 3)


class CnnCifar(CifarWorkload):
    """Four convolutions with so little compute that launches and input take most of a step."""

    def model(self) -> nn.Module:
        """Build two pairs of convolutions and two fully connected layers. The second of each pair has no padding."""
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
        """Return RMSprop, as in Keras's example."""
        return torch.optim.RMSprop(parameters, lr=1e-4)


class AlexNetCifar(CifarWorkload):
    """AlexNet for CIFAR-10 with few kernels and 7 MB of gradients. In tf_cnn_benchmarks this network scaled worst."""

    def model(self) -> nn.Module:
        """Build 5 layers with weights. Feature maps shrink from 32x32 to 8x8 before the fully connected layers."""
        # Normalise over nine channels. PyTorch divides `alpha` by nine, TensorFlow does not.
        norm1, norm2 = (nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0) for _ in range(2))
        return nn.Sequential(
            nn.Conv2d(3, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
            norm1,
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            norm2,
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 384),
            nn.ReLU(inplace=True),
            nn.Linear(384, 192),
            nn.ReLU(inplace=True),
            nn.Linear(192, CifarWorkload.classes),
        )
