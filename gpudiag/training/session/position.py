"""Determine this process's position in the cluster, and describe its host."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

#: Variables with a process's number, set by the launchers torchrun, Open MPI, MPICH and Slurm.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPosition:
    """Position of one process in the job, as defined by `torchrun`, the default process group or TensorFlow's cluster.

    `rank` and `world_size` count processes. A process drives `devices` devices. In records each device is a rank.
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
        """Rank of this process's first device in records."""
        return self.rank * self.devices

    @property
    def ranks(self) -> int:
        """Number of devices in the whole job."""
        return self.world_size * self.devices


def current_position() -> ClusterPosition:
    """Return the position in the default process group, or else from torchrun's environment variables.

    If both are missing, the job has one process. torchrun sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and
    GROUP_WORLD_SIZE (https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables).
    """
    rank, world = environment_number("RANK", 0), environment_number("WORLD_SIZE", 1)
    group = _process_group()
    if group is not None:
        rank, world = group.get_rank(), group.get_world_size()
    local_world = environment_number("LOCAL_WORLD_SIZE", world)
    return ClusterPosition(
        rank=rank,
        local_rank=environment_number("LOCAL_RANK", rank % max(1, local_world)),
        world_size=world,
        nodes=environment_number("GROUP_WORLD_SIZE", max(1, world // max(1, local_world))),
        host=socket.gethostname(),
        pid=os.getpid(),
    )


def independent_position() -> ClusterPosition:
    """Return the position of a process that gpudiag did not start.

    A process without a process group trains independently: its world size is 1, and its launcher sets its rank (or 0).
    """
    position = current_position()
    if _process_group() is not None:
        return position
    numbers = (os.environ.get(variable, "") for variable in _RANK_VARIABLES)
    rank = next((int(number) for number in numbers if number.isdecimal()), 0)
    return replace(position, rank=rank, world_size=1, nodes=1)


def environment_number(variable: str, default: int) -> int:
    """Return the value of an environment variable as a number; return `default` if it is not a number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default


def script_name() -> str:
    """Return the file name of the running script; "python" without a script."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"


def cpu_name() -> str:
    """Return the CPU's model name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 # a file of the kernel
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def driver_version() -> str:
    """Return the NVIDIA driver's version; "" if it is unknown."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001  # the record needs no driver version
        return ""


def _process_group() -> Any:
    """Return `torch.distributed` if this process has a default process group, else None."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed
    return None
