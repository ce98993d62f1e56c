"""`resnet20-cifar` and its deeper kin: K. He et al., "Deep Residual Learning for Image Recognition", section 4.2.

Parameters: 269,722 with 20 layers, 464,154 with 32, 658,586 with 44, 853,018 with 56 and 1,727,962 with 110. Shortcuts
that change the shape have none (option A: every other pixel, new channels zero), and the last layer has a bias.

tf_cnn_benchmarks logs 271,164 (466,492; 661,820; 857,148; 1,736,124) for the same networks: it counts the running mean
and variance of each normalised channel too, an eleventh class, and its step counter.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import CifarWorkload, initialise_convolutions

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
        self.classifier = nn.Linear(WIDTHS[-1], CifarWorkload.classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 32, 32] to float[n, 10]."""
        x = self.stages(functional.relu(self.norm(self.conv(x))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class ResNetCifarTraining(CifarWorkload):
    """Small kernels and little data: what it shows is mostly how fast the host can launch.

    Args:
        depth: 6n + 2 layers, those with weights.
        on_gpu: sized for a GPU; otherwise for a CPU process.
    """

    def __init__(self, depth: int, *, on_gpu: bool) -> None:
        super().__init__(on_gpu=on_gpu)
        self._blocks = (depth - 2) // 6

    def model(self) -> nn.Module:
        """Three stages of n blocks each."""
        return ResNetCifar(self._blocks)
