"""List NUMA nodes, find the node of a PCI device, and bind a thread and its memory to a node.

The memory policy is set by set_mempolicy(2) directly, because libnuma may not be installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of the system call set_mempolicy, by processor architecture.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}.get(platform.machine())
#: Memory policies of the kernel (MPOL_DEFAULT, MPOL_BIND).
_DEFAULT, _BIND = 0, 2


def parse_cpu_list(text: str) -> set[int]:
    """Return the numbers in a kernel list such as `0-3,8`."""
    numbers: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def nodes() -> dict[int, set[int]]:
    """Return {NUMA node with memory: CPUs that this process may use}; {0: all usable CPUs} if nodes are unknown."""
    usable = os.sched_getaffinity(0)
    root = Path("/sys/devices/system/node")
    with contextlib.suppress(OSError, ValueError):
        present = parse_cpu_list((root / "has_memory").read_text())
        cpus = {node: parse_cpu_list((root / f"node{node}" / "cpulist").read_text()) & usable for node in present}
        if cpus:
            return dict(sorted(cpus.items()))
    return {0: set(usable)}


def node_of_pci(pci_id: str) -> int | None:
    """Return the NUMA node of a PCI device; None if the firmware does not report it."""
    domain, _, rest = pci_id.lower().partition(":")
    with contextlib.suppress(OSError, ValueError):
        node = int(Path(f"/sys/bus/pci/devices/{int(domain, 16):04x}:{rest}/numa_node").read_text())
        return node if node >= 0 else None
    return None


def available_bytes() -> int:
    """Return the bytes of memory that are available without swapping; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def memory_on(node: int | None) -> Iterator[None]:
    """Within the block, allocate pages that this thread touches first on `node`.

    The context has no effect if there is only one node, or if `node` is None.

    Raises:
        OSError: the kernel refuses the policy, for example because a container forbids it.
    """
    if node is None or len(nodes()) < 2:
        yield
        return
    _set_policy(_BIND, node)
    try:
        yield
    finally:
        _set_policy(_DEFAULT, None)


@contextlib.contextmanager
def thread_on(node: int | None) -> Iterator[None]:
    """Within the block, run this thread on the CPUs of `node`. The context has no effect if `node` is unknown."""
    cpus = nodes().get(node, set()) if node is not None else set()
    before = os.sched_getaffinity(0)
    if cpus and cpus != before:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _set_policy(mode: int, node: int | None) -> None:
    """Set this thread's memory policy by set_mempolicy(2): `_BIND` to a node below 1024, or `_DEFAULT` with None."""
    if _SET_MEMPOLICY is None:
        raise OSError(f"memory policy is not implemented for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    mask = (ctypes.c_ulong * 16)()
    if node is not None:
        mask[node // 64] = 1 << node % 64
    pointer = ctypes.byref(mask) if node is not None else None
    bits = ctypes.c_ulong(1024 if node is not None else 0)
    if libc.syscall(ctypes.c_long(_SET_MEMPOLICY), ctypes.c_int(mode), pointer, bits) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"set_mempolicy for NUMA node {node}: {os.strerror(code)}")
