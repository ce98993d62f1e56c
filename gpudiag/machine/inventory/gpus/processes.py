"""List the processes that use a GPU, and mark gpudiag's own. `root` is "/" or a recorded tree."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gpudiag.machine.inventory.gpus.nvml import NvmlSession
from gpudiag.model.facts import GpuProcess

#: NVML functions that list the compute, graphics and MPS contexts, newest version first.
_LISTS = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)


def _parent(root: Path, pid: int) -> int | None:
    try:
        status = (root / f"proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else None


def ancestors(root: Path, pid: int) -> tuple[int, ...]:
    """Return the process ids of a process and its ancestors, up to a process that /proc does not show."""
    lineage: list[int] = []
    current: int | None = pid
    while current and current not in lineage:
        lineage.append(current)
        current = _parent(root, current)
    return tuple(lineage)


def _name(session: NvmlSession, root: Path, pid: int) -> str | None:
    try:
        return (root / f"proc/{pid}/comm").read_text(errors="replace").strip() or None
    except OSError:
        # The process is outside of this container's process namespace, but the driver may know its name.
        answer = session.ask({}, "name", "nvmlSystemGetProcessName", pid)
        return str(answer).rsplit("/", 1)[-1] or None if answer is not None else None


def gpu_processes(session: NvmlSession, handle: Any, root: Path, reasons: dict[str, str]) -> tuple[GpuProcess, ...]:
    """Return every process with a compute, graphics or MPS context on the GPU, by process id.

    A process is `own` if it is this process, its ancestor or its descendant.
    """
    memory: dict[int, int | None] = {}
    for position, functions in enumerate(_LISTS):
        # If a list fails, only that of compute contexts needs a reason; the others are optional.
        list_reasons = reasons if position == 0 else {}
        for entry in session.ask(list_reasons, "processes", functions, handle) or ():
            known = memory.get(entry.pid)  # a process may be in several lists
            memory[entry.pid] = entry.usedGpuMemory if known is None else max(known, entry.usedGpuMemory or 0)
    this_process = os.getpid()
    lineage = set(ancestors(root, this_process))
    return tuple(
        GpuProcess(
            pid=pid,
            name=_name(session, root, pid),
            memory_bytes=memory[pid],
            own=pid in lineage or this_process in ancestors(root, pid),
        )
        for pid in sorted(memory)
    )
