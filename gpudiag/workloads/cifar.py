"""What the workloads on images of CIFAR-10's shape share: the shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.workloads.workload import Workload, image_samples, scaled

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SIDE = 32
CLASSES = 10


class CifarWorkload(Workload):
    """Images of 32x32 in ten classes."""

    def samples(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """uint8[count, 3, 32, 32] and classes."""
        return image_samples(count, SIDE, CLASSES, generator)

    def prepare(self, inputs: Tensor) -> Tensor:
        """Bytes to floats."""
        return scaled(inputs)
