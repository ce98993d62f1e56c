"""Read the host's processors and NUMA nodes, and how many CPUs this process may use.

`root` is "/" or a recorded tree.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec

from gpudiag.machine.inventory.host.kernel_files import read_int, read_text
from gpudiag.model.facts import NumaNode, parse_cpu_list


class Cpus(msgspec.Struct, frozen=True, kw_only=True):
    """The host's processors; None if the kernel does not show them."""

    model: str
    sockets: int | None
    cores: int | None
    threads: int | None
    usable: int | None


def _model(root: Path) -> str:
    text = read_text(root / "proc/cpuinfo") or ""
    for label in ("model name", "Model", "cpu model", "Hardware", "cpu"):
        match = re.search(rf"^{label}\s*:\s*(.+)$", text, re.MULTILINE)
        if match:
            return re.sub(r"\s+", " ", match[1]).strip()
    return ""


def _online(root: Path) -> tuple[int, ...]:
    try:
        return parse_cpu_list(read_text(root / "sys/devices/system/cpu/online") or "")
    except ValueError:
        return ()


def cpu_quota(root: Path) -> float | None:
    """Return how many CPUs control groups allow: the least limit of this process's group and its parents, or None."""
    limits = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        # The fields of a line are hierarchy, controllers and path. Version 2 of control groups names no controllers.
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if ".." in path:  # the group is outside of this container
            continue
        unified = not controllers
        base = root / ("sys/fs/cgroup" if unified else "sys/fs/cgroup/cpu")
        if not unified and "cpu" not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        while True:
            limits.append(_group_quota(group, unified=unified))
            if group == base:
                break
            group = group.parent
    return min((limit for limit in limits if limit is not None), default=None)


def _group_quota(group: Path, *, unified: bool) -> float | None:
    """Return the CPU limit of one control group of version 2 (`unified`) or 1; None for no limit."""
    if unified:
        quota, _, period = (read_text(group / "cpu.max") or "").partition(" ")
        return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
    quota_us, period_us = read_int(group / "cpu.cfs_quota_us"), read_int(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def allowed_cpus(root: Path) -> str | None:
    """Return the CPUs of this process's affinity in the kernel's list notation; None if the kernel does not show it."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)", read_text(root / "proc/self/status") or "", re.MULTILINE)
    return allowed[1] if allowed else None


def _usable(root: Path, online: int) -> int | None:
    """Return the number of CPUs that this process may use, according to its affinity and its control groups."""
    allowed = allowed_cpus(root)
    try:
        count = len(parse_cpu_list(allowed)) if allowed else online
    except ValueError:
        count = online
    quota = cpu_quota(root)
    if quota is not None:
        count = min(count, math.ceil(quota))
    return max(count, 1) if count else None


def host_cpus(root: Path) -> Cpus:
    """Return the processors, from /proc/cpuinfo and the kernel's topology files."""
    online = _online(root)
    base = root / "sys/devices/system/cpu"
    cores = [
        (read_int(base / f"cpu{i}/topology/physical_package_id"), read_int(base / f"cpu{i}/topology/core_id"))
        for i in online
    ]
    known = [(package, core) for package, core in cores if package is not None and core is not None]
    return Cpus(
        model=_model(root),
        sockets=len({package for package, _ in known}) or None,
        cores=len(set(known)) or None,
        threads=len(online) or None,
        usable=_usable(root, len(online)),
    )


def numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that have CPUs or memory, by number; empty if the kernel shows none."""
    nodes = []
    for directory in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = read_text(directory / "cpulist")
        if cpus is None:
            continue
        total = re.search(r"MemTotal:\s+(\d+) kB", read_text(directory / "meminfo") or "")
        nodes.append(
            NumaNode(
                index=int(directory.name.removeprefix("node")),
                cpus=cpus,
                memory_bytes=int(total[1]) * 1024 if total else None,
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.index))
