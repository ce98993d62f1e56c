"""Which processors are near a device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PCI = Path("/sys/bus/pci/devices")


def processors_near(device: torch.device) -> set[int]:
    """The processors of the device's NUMA node that this process may use; all that it may use where nothing is known.

    From Linux's `local_cpulist` of the GPU's PCI device.
    """
    allowed = os.sched_getaffinity(0)
    if device.type != "cuda":
        return allowed
    try:
        near = parse_cpu_list((_PCI / _address(device) / "local_cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return allowed
    return near & allowed or allowed


def _address(device: torch.device) -> str:
    """The GPU's place on the PCI bus, as sysfs writes it: 0000:3b:00.0. Raises ValueError when it is not known."""
    from cuda.bindings import runtime

    error, name = runtime.cudaDeviceGetPCIBusId(32, device.index or 0)
    if error != runtime.cudaError_t.cudaSuccess:
        raise ValueError(str(error))
    text = name.decode("ascii") if isinstance(name, bytes) else str(name)
    return text.split("\0")[0].strip().lower()


def parse_cpu_list(text: str) -> set[int]:
    """Linux's way to write a set of processors: '0-3,8'. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
