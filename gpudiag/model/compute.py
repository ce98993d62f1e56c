"""Define the classes of kernels, and the time of each class per step."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from gpudiag.model.quantities import Milliseconds, Rate

#: Class of a kernel by what it computes; `other` if its name and its operator do not say.
KernelClass = Literal[
    "matmul",
    "convolution",
    "attention",
    "normalization",
    "softmax",
    "elementwise",
    "reduction",
    "layout-conversion",
    "optimizer",
    "embedding",
    "random",
    "copy-kernel",
    "other",
]
KERNEL_CLASSES: tuple[KernelClass, ...] = get_args(KernelClass)
#: Limit of a class: units for matrices, other arithmetic units, memory bandwidth, or the length of a launch.
Bound = Literal["tensor-core", "simt", "memory", "launch"]


class ComputeClass(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one class: exclusive device time per step, averaged over devices; classes sum to bucket `compute`.

    Attributes:
        kernel_class: one of `KERNEL_CLASSES`; classes below 1 % of the bucket are part of `other`.
        ms_per_step: milliseconds per step; instants at which several kernels run are divided equally among them.
        kernels: number of kernels per step and device.
        bound: what limits most of the time; None if unknown.
    """

    kernel_class: str = msgspec.field(name="class")
    ms_per_step: Milliseconds
    kernels: Rate
    bound: Bound | None = None
