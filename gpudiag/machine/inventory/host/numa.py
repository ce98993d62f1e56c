"""NUMA nodes of the host: their CPUs and memory."""

from __future__ import annotations

import re
from pathlib import Path

from gpudiag.machine.inventory.host.textfile import read_text
from gpudiag.model.facts import NumaNode


def numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    """The nodes that have CPUs or memory, by number; empty where the kernel shows none."""
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
