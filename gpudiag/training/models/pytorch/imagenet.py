"""Define networks for ImageNet: `alexnet`, `vgg16`, `resnet50` and `inception3`.

- `alexnet`, 61,100,840 parameters: the one-column AlexNet of A. Krizhevsky, "One weird trick for parallelizing CNNs"
  (2014), as in torchvision. tf_cnn_benchmarks' AlexNet has 61,842,345 parameters, because its fourth convolution has
  384 channels instead of 256, and it has 1,001 classes.
- `vgg16`, 138,357,544 parameters: configuration D of K. Simonyan and A. Zisserman, "Very Deep Convolutional Networks"
  (2014). The gradients have 553 MB in fp32, nine tenths of them in the fully connected layers.
- `resnet50`, 25,557,032 parameters: ResNet-50 v1.5 (stride in the 3x3 convolution).
- `inception3`, 23,834,568 parameters: C. Szegedy et al., "Rethinking the Inception Architecture" (2015), without the
  auxiliary head. Keras counts 23,851,784 parameters: its normalisations have no scales (17,216 fewer parameters), but
  it also counts running means and variances (34,432 more).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpudiag.training.models.pytorch.workload import ImageWorkload, initialise_convolutions

HIDDEN = 4096
#: Height and width of the last feature map.
ALEXNET_POOLED, VGG_POOLED = 6, 7
#: (number of convolutions, channels) of each VGG stage. Every stage ends with pooling.
VGG_STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
#: (number of blocks, channels of their 3x3 convolutions) of each ResNet stage. A block's output has EXPANSION times as
#: many channels.
RESNET_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class AlexNetModel(nn.Module):
    """AlexNet: five convolutions with biases (three of them followed by pooling), and three fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * ALEXNET_POOLED * ALEXNET_POOLED, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, ImageWorkload.classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, 224, 224] to float[n, 1000]."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class AlexNet(ImageWorkload):
    """AlexNet, with the least compute per byte of gradients (244 MB in fp32) of the classical networks."""

    def model(self) -> nn.Module:
        """Build the network with 8 layers that have weights."""
        return AlexNetModel()


class VggModel(nn.Module):
    """VGG-16: thirteen convolutions with biases, and three fully connected layers, without normalisation."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for count, width in VGG_STAGES:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(VGG_POOLED)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * VGG_POOLED * VGG_POOLED, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, ImageWorkload.classes),
        )
        initialise_convolutions(self)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # VGG has biases
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, h, w] to float[n, 1000]; h and w are at least 32."""
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits


class Vgg16(ImageWorkload):
    """VGG-16, which needs much bandwidth, because it has many bytes of gradients for its step time."""

    #: Pixels along each side on a CPU. The last feature map is enlarged to 7x7, so the layers are the same.
    cpu_side = 64

    def model(self) -> nn.Module:
        """Build the network with 16 layers that have weights."""
        return VggModel()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut. If the shape changes, the shortcut is a 1x1 convolution."""

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
        """Map float[n, inputs, h, w] to float[n, 4 * width, h / stride, w / stride]."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """ResNet-50: a stem, four stages of bottlenecks and a classifier."""

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
        for stage, (count, width) in enumerate(RESNET_STAGES):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, stride=2 if stage > 0 and index == 0 else 1))
                inputs = width * EXPANSION
        self.stages = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, ImageWorkload.classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, 224, 224] to float[n, 1000]."""
        x = functional.adaptive_avg_pool2d(self.stages(self.stem(x)), 1)
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class ResNet50(ImageWorkload):
    """ResNet-50, with so much compute per byte of gradients that a healthy machine hides the communication."""

    def model(self) -> nn.Module:
        """Build the network, 50 layers."""
        return ResNet()


def convolution(
    inputs: int, outputs: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int | tuple[int, int] = 0
) -> nn.Module:
    """Build a convolution of `inputs` to `outputs` channels without bias, a normalisation and a ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001),
        nn.ReLU(inplace=True),
    )


def row(inputs: int, outputs: int, length: int) -> nn.Module:
    """Build a 1 x `length` convolution that keeps the height and width."""
    return convolution(inputs, outputs, (1, length), padding=(0, length // 2))


def column(inputs: int, outputs: int, length: int) -> nn.Module:
    """Build a `length` x 1 convolution that keeps the height and width."""
    return convolution(inputs, outputs, (length, 1), padding=(length // 2, 0))


class Branches(nn.Module):
    """Pass the input through each branch and concatenate the outputs along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, c, h, w] to float[n, sum of the branches' channels, h', w']."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def pooled(inputs: int, outputs: int) -> nn.Module:
    """Build the pooling branch of `block_35`, `block_17` and `block_8`."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), convolution(inputs, outputs, 1))


def block_35(inputs: int, pool: int) -> nn.Module:
    """Build a block for 35x35 maps (the paper's figure 5, with a 5x5 convolution). Pooling has `pool` outputs."""
    return Branches(
        convolution(inputs, 64, 1),
        nn.Sequential(convolution(inputs, 48, 1), convolution(48, 64, 5, padding=2)),
        nn.Sequential(convolution(inputs, 64, 1), convolution(64, 96, 3, padding=1), convolution(96, 96, 3, padding=1)),
        pooled(inputs, pool),
    )


def block_17(width: int) -> nn.Module:
    """Build a block for 17x17 maps of 768 channels (figure 6): 1x7 and 7x1 in place of 7x7; `width` channels inside."""
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
    """Build a block for 8x8 maps (figure 7), with 1x3 and 3x1 convolutions in parallel."""
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
    """Build the reduction from 35x35 to 17x17."""
    return Branches(
        convolution(inputs, 384, 3, stride=2),
        nn.Sequential(convolution(inputs, 64, 1), convolution(64, 96, 3, padding=1), convolution(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def to_8(inputs: int) -> nn.Module:
    """Build the reduction from 17x17 to 8x8."""
    return Branches(
        nn.Sequential(convolution(inputs, 192, 1), convolution(192, 320, 3, stride=2)),
        nn.Sequential(
            convolution(inputs, 192, 1), row(192, 192, 7), column(192, 192, 7), convolution(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


class Inception(nn.Module):
    """Inception-v3: a stem, eleven blocks and a classifier."""

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
        self.classifier = nn.Linear(2048, ImageWorkload.classes)
        initialise_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 3, 299, 299] to float[n, 1000]."""
        x = functional.adaptive_avg_pool2d(self.features(x), 1)
        logits: Tensor = self.classifier(x.flatten(1))
        return logits


class Inception3(ImageWorkload):
    """Inception-v3, which has many kernels of all shapes, and much compute per byte of gradients."""

    side = 299

    def model(self) -> nn.Module:
        """Build the network, 48 layers deep."""
        return Inception()
