"""Where this process stands in the job: its rank, its host, its device, its software."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process of the job, as `torchrun` and the default process group, or TensorFlow's cluster, describe it.

    `rank` and `world_size` count processes; each drives `devices` devices, which are ranks of their own in the records.
    """

    rank: int
    local_rank: int
    world_size: int
    nodes: int
    host: str
    pid: int
    devices: int = 1

    @property
    def first_rank(self) -> int:
        """The rank of this process's first device."""
        return self.rank * self.devices

    @property
    def ranks(self) -> int:
        """Devices in the whole job."""
        return self.world_size * self.devices


def this_place() -> Place:
    """Read from the default process group where there is one, else from `torchrun`'s environment, else a job of one.

    torchrun sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_WORLD_SIZE
    (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables).
    """
    rank, world = _number("RANK", 0), _number("WORLD_SIZE", 1)
    loaded: Any = sys.modules.get("torch")
    if loaded is not None and loaded.distributed.is_available() and loaded.distributed.is_initialized():
        rank, world = loaded.distributed.get_rank(), loaded.distributed.get_world_size()
    local_world = _number("LOCAL_WORLD_SIZE", world)
    return Place(
        rank=rank,
        local_rank=_number("LOCAL_RANK", rank % max(1, local_world)),
        world_size=world,
        nodes=_number("GROUP_WORLD_SIZE", max(1, world // max(1, local_world))),
        host=socket.gethostname(),
        pid=os.getpid(),
    )


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


def cpu_name() -> str:
    """Model of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  # not a file to keep
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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


def driver_version() -> str:
    """Version of the NVIDIA driver; "" where none is known."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001  # a version for the record is worth no failure, whatever NVML throws
        return ""


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise
