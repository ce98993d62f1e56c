"""`vgg16`: configuration D of K. Simonyan and A. Zisserman, "Very Deep Convolutional Networks" (2014).

138,357,544 parameters, 553 MB of gradients in fp32, nine tenths of them in the three fully connected layers: the
customary test of an interconnect.
"""

from __future__ import annotations

from torch import Tensor, nn

from gpudiag.training.models.pytorch.workload import ImageWorkload, initialise_convolutions

#: A CPU process trains the same model on smaller images, whose last feature map is enlarged to the same 7x7.
CPU_SIDE = 64
CLASSES = 1000
#: Per stage: 3x3 convolutions, and their channels; a stage ends with pooling.
STAGES = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
POOLED = 7
HIDDEN = 4096


class Vgg(nn.Module):
    """Thirteen convolutions with biases and without normalisation, then three fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for count, width in STAGES:
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(POOLED)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * POOLED * POOLED, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, CLASSES),
        )
        initialise_convolutions(self)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]  # there is one
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, h, w] to float[n, 1000]; h and w at least 32."""
        logits: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return logits


class Vgg16(ImageWorkload):
    """Bandwidth-heavy: many bytes to exchange for the time that its step takes."""

    cpu_side = CPU_SIDE

    def model(self) -> nn.Module:
        """16 layers with weights."""
        return Vgg()
