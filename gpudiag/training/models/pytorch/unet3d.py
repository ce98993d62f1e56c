"""Define `unet3d`: a 3D U-Net that finds boundaries in electron microscopy.

The network has 93,659,931 parameters and 375 MB of gradients in fp32. It is the network of the neurofire library for
the CREMI data sets, after O. Cicek et al., "3D U-Net" (2016). Its levels have 12, 60, 300 and 1500 channels, and two
3x3x3 convolutions with ELU each. Pooling is by 1x3x3, because the volumes are coarse along z. Upsampling repeats the
nearest voxel. A sigmoid follows each of the three outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from gpudiag.training.models.pytorch.workload import Workload

#: Size of a training volume in voxels along z, y, x.
SHAPE = (40, 432, 432)
#: Size of a training volume on a CPU. The model is the same as on GPUs.
CPU_SHAPE = (4, 54, 54)
FEATURES = (12, 60, 300, 1500)
OUTPUTS = 3
#: Voxels along z, y and x that are pooled into one.
POOLING = (1, 3, 3)


class TwoConvolutions(nn.Sequential):
    """Two 3x3x3 convolutions that keep the shape, each with ELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv3d(inputs, outputs, 3, padding=1),
            nn.ELU(inplace=True),
            nn.Conv3d(outputs, outputs, 3, padding=1),
            nn.ELU(inplace=True),
        )


class UNet3d(nn.Module):
    """U-Net with skip connections, which pools on the way down and repeats voxels on the way up.

    `features` are the channels of each level, the deepest level last.
    """

    def __init__(self, features: Sequence[int] = FEATURES) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        inputs = 1
        for width in features:
            self.down.append(TwoConvolutions(inputs, width))
            inputs = width
        self.up = nn.ModuleList()
        for width in reversed(features[:-1]):
            self.up.append(TwoConvolutions(inputs + width, width))
            inputs = width
        self.last = nn.Conv3d(inputs, OUTPUTS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map float[n, 1, z, y, x] to float[n, 3, z, y, x] in 0..1. y and x must be multiples of 3 ** (levels - 1)."""
        skips: list[Tensor] = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(x if level == 0 else functional.max_pool3d(x, POOLING))
            skips.append(x)
        skips.pop()  # the deepest level has no skip connection
        for convolutions in self.up:
            x = functional.interpolate(x, scale_factor=[float(factor) for factor in POOLING], mode="nearest")
            x = convolutions(torch.cat((x, skips.pop()), dim=1))
        return torch.sigmoid(self.last(x))


def dice_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative Sørensen-Dice coefficient of two tensors [n, channels, z, y, x], summed over channels.

    The value of a channel is -2 sum(p t) / (sum(p^2) + sum(t^2)), with sums over samples and voxels, from -1 (equal) to
    0 (disjoint or empty). Sums are in single precision, because sums over millions of voxels would overflow half
    precision.
    """
    p = output.float().transpose(0, 1).flatten(1)
    t = target.float().transpose(0, 1).flatten(1)
    shared = (p * t).sum(1)
    both = (p * p).sum(1) + (t * t).sum(1)
    return (-2 * shared / both.clamp(min=1e-6)).sum()


class UNet3dTraining(Workload):
    """3D U-Net with few large convolutions on one volume per step. It needs much memory."""

    #: Number of distinct samples in memory, which is small, because a volume with its target has 30 MB.
    pool = 8
    channels_last = torch.channels_last_3d

    def model(self) -> nn.Module:
        """Build the network with four levels."""
        return UNet3d()

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make grey values, uint8[count, 1, z, y, x], and boundaries, uint8[count, 3, z, y, x]."""
        shape = SHAPE if self.on_gpu else CPU_SHAPE
        volumes = torch.randint(0, 256, (count, 1, *shape), dtype=torch.uint8, generator=generator)
        return volumes, torch.randint(0, 2, (count, OUTPUTS, *shape), dtype=torch.uint8, generator=generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Scale grey values to floats from 0 to 1."""
        return inputs.to(torch.float32).div_(255)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the Dice loss."""
        return dice_loss(output, target)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Return Adam, fused on GPUs."""
        return torch.optim.Adam(parameters, lr=1e-4, fused=self.on_gpu)
