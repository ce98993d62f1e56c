"""Where this process stands in the job: its rank and its host; and what the host is."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
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


def script_name() -> str:
    """The program that runs, as the user named it."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


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
