"""Gather the host's processors, memory, limits, isolation, and environment variables that affect communication.

Everything is read from files below `root`, so that a recorded tree of /proc and /sys gives the same result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpudiag.machine.inventory.host.cpus import host_cpus, numa_nodes
from gpudiag.machine.inventory.host.isolation import acs_state, iommu_state
from gpudiag.machine.inventory.host.kernel_files import read_text
from gpudiag.machine.inventory.host.nics import gather_nics
from gpudiag.machine.inventory.host.virtualization import container_hint, hypervisor_hint
from gpudiag.model.facts import Gpu, Host

#: Prefixes and names of the environment variables that are recorded.
_PREFIXES = ("NCCL_", "CUDA_", "TORCH_NCCL_", "GLOO_", "UCX_", "NVIDIA_", "FI_", "TF_GPU_", "HOROVOD_")
_NAMES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_FLAGS",
    "LD_PRELOAD",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
)


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that affect communication or the visible GPUs. Other variables are not recorded."""
    return {name: environment[name] for name in sorted(environment) if name in _NAMES or name.startswith(_PREFIXES)}


def _os_name(root: Path) -> str:
    text = read_text(root / "etc/os-release") or read_text(root / "usr/lib/os-release") or ""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)"?', text, re.MULTILINE)
    return match[1] if match else ""


def _memory_bytes(root: Path) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _shm(root: Path, reasons: dict[str, str]) -> tuple[int | None, int | None]:
    """Return the total and the free bytes of /dev/shm, or (None, None) with the reason in `reasons`."""
    try:
        answer = os.statvfs(root / "dev/shm")
    except OSError as error:
        reasons["shm_bytes"] = reasons["shm_free_bytes"] = f"shared memory: {error.strerror}"
        return None, None
    return answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize


def _memlock(root: Path) -> int | None:
    """Return the soft limit of bytes that this process may lock, -1 for unlimited."""
    match = re.search(r"^Max locked memory\s+(\S+)", read_text(root / "proc/self/limits") or "", re.MULTILINE)
    if not match:
        return None
    return -1 if match[1] == "unlimited" else int(match[1]) if match[1].isdigit() else None


def gather_host(
    root: Path,
    environment: Mapping[str, str],
    gpus: Sequence[Gpu] = (),
    *,
    driver: str | None = None,
    cuda_driver: str | None = None,
    reasons: dict[str, str] | None = None,
) -> Host:
    """Return the properties of the host, read from files below `root`.

    Args:
        root: "/" for this machine, or a recorded tree.
        environment: variables of this process.
        gpus: the GPUs, to find the bridges above them and their distances to network devices.
        driver: version of the NVIDIA driver.
        cuda_driver: CUDA version of the driver.
        reasons: known reasons why values are missing.
    """
    cpus, numa, memory, memlock = host_cpus(root), numa_nodes(root), _memory_bytes(root), _memlock(root)
    iommu, no_iommu = iommu_state(root)
    acs, no_acs = acs_state(root, [gpu.pci_id for gpu in gpus if gpu.pci_id is not None])
    no_cpus = "the kernel does not show it in /proc/cpuinfo or /sys/devices/system/cpu"
    # (field, whether it has a value, reason why it has none)
    missing = (
        ("cpu", cpus.model, no_cpus),
        ("sockets", cpus.sockets, no_cpus),
        ("cores", cpus.cores, no_cpus),
        ("threads", cpus.threads, no_cpus),
        ("iommu", not no_iommu, no_iommu),
        ("acs", not no_acs, no_acs),
        ("numa", numa, "the kernel shows no NUMA nodes"),
        ("memory_bytes", memory is not None, "/proc/meminfo cannot be read"),
        ("memlock_bytes", memlock is not None, "/proc/self/limits cannot be read"),
    )
    reasons = {**(reasons or {}), **{field: reason for field, known, reason in missing if not known and reason}}
    shm, shm_free = _shm(root, reasons)
    live = os.uname() if str(root) == "/" else None  # a recorded tree is of another machine
    return Host(
        name=read_text(root / "proc/sys/kernel/hostname") or (live.nodename if live else ""),
        os=_os_name(root),
        kernel=read_text(root / "proc/sys/kernel/osrelease") or (live.release if live else ""),
        cpu=cpus.model,
        sockets=cpus.sockets,
        cores=cpus.cores,
        threads=cpus.threads,
        usable_cpus=cpus.usable,
        numa=numa,
        memory_bytes=memory,
        driver=driver,
        cuda_driver=cuda_driver,
        iommu=iommu,
        acs=acs,
        container=container_hint(root, environment),
        hypervisor=hypervisor_hint(root),
        shm_bytes=shm,
        shm_free_bytes=shm_free,
        memlock_bytes=memlock,
        environment=relevant_environment(environment),
        nics=gather_nics(root, gpus),
        reasons=reasons,
    )
