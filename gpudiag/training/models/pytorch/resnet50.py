"""`resnet50`: ResNet-50 v1.5 (stride in the 3x3 convolution), 25,557,032 parameters, as every other tool means it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import ImageWorkload, initialise_convolutions

CLASSES = 1000
#: Per stage: blocks, and channels of the 3x3 convolution; four times as many leave the block.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions, and a projection on the shortcut where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, inputs, h, w] to float[n, 4 * width, h / stride, w / stride]."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """The stem, four stages of bottlenecks, and the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        inputs = 64
        for stage, (count, width) in enumerate(STAGES):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, stride=2 if stage > 0 and index == 0 else 1))
                inputs = width * EXPANSION
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, CLASSES)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 224, 224] to float[n, 1000]."""
        x = functional.adaptive_avg_pool2d(self.stages(self.stem(x)), 1)
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class ResNet50(ImageWorkload):
    """Enough compute per byte exchanged that a healthy machine hides the exchange."""

    def model(self) -> nn.Module:
        """50 layers."""
        return ResNet()
