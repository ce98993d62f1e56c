"""`alexnet`: the one-column AlexNet of A. Krizhevsky, "One weird trick for parallelizing CNNs" (2014).

61,100,840 parameters, as torchvision has it; nearly all of them in the fully connected layers. tf_cnn_benchmarks' has
61,842,345: 384 channels in the fourth convolution where this one has 256, and 1,001 classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from gpudiag.training.models.pytorch.workload import ImageWorkload

CLASSES = 1000
POOLED = 6
HIDDEN = 4096


class AlexNetModel(nn.Module):
    """Five convolutions with biases, three of them followed by pooling, then three fully connected layers."""

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
            nn.Linear(256 * POOLED * POOLED, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(inplace=True),
            nn.Linear(HIDDEN, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        """float[n, 3, 224, 224] to float[n, 1000]."""
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits


class AlexNet(ImageWorkload):
    """Little compute for 244 MB of gradients in fp32: the worst case of the classical networks."""

    def model(self) -> nn.Module:
        """8 layers with weights."""
        return AlexNetModel()
