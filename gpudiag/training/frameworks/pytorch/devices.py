"""The devices that this process trains on under PyTorch, and the software that drives them."""

from __future__ import annotations

import platform
from typing import Any

from gpudiag.training.session.place import cpu_name, driver_version


def training_device(wanted: Any = None) -> Any:
    """The `torch.device` that this process trains on.

    `wanted` where given; else the current GPU if this process has used one already; else the CPU.
    """
    import torch

    if wanted is not None:
        device: Any = torch.device(wanted)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return device
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        return torch.device("cuda", cuda.current_device())
    return torch.device("cpu")


def device_name(device: Any) -> str:
    """Model name of the GPU, or of the CPU that this process runs on."""
    if device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(device))
    return cpu_name()


def software() -> dict[str, str]:
    """Versions of what trains here: python, torch, and on GPUs cuda, cudnn, nccl and the driver."""
    import torch

    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda is None or not torch.cuda.is_available():
        return versions
    versions["cuda"] = torch.version.cuda
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch's own
    if cudnn is not None:
        versions["cudnn"] = str(cudnn)
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl: Any = torch.cuda.nccl
        versions["nccl"] = ".".join(str(part) for part in nccl.version())
    driver = driver_version()
    if driver:
        versions["driver"] = driver
    return versions
