"""List the path and the peer access between every two GPUs, and group GPUs that reach each other directly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from gpudiag.machine.inventory.gpus.nvml import NvmlSession
from gpudiag.machine.inventory.host.pci import distance, pci_chain
from gpudiag.model.facts import Gpu, Link

# nvml.h: nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t.
_READ = 0
_WRITE = 1
_NVLINK = 2
_STATUS_OK = 0
#: Reasons why peer access is denied, by NVML's status (NVIDIA's abbreviations in parentheses).
_DENIED = {
    1: "chipset not supported (CNS): the path between them crosses a chipset that does not carry peer traffic",
    2: "GPU not supported (GNS): this model, or this model in a virtual machine, has no peer access",
    3: "topology not supported (TNS): they are attached to different CPUs or I/O hubs",
    4: "disabled by a driver setting (registry key)",
    5: "not supported (NS)",
    6: "unknown (U): the driver cannot tell, which is usual in virtual machines",
}
#: Kind of a path, as `nvidia-smi topo -m` names it, by NVML's level of the common ancestor of two GPUs.
_LEVEL = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def _nvlink_lanes(session: NvmlSession, a: Gpu, b: Gpu, handle_a: Any, handle_b: Any) -> int:
    """Count the lanes that connect two GPUs: directly, or else through switches to which both are attached."""
    direct = sum(lane.active and lane.remote is not None and lane.remote == b.pci_id for lane in a.nvlinks)
    if direct:
        return direct
    through = [sum(lane.active and lane.remote_kind == "switch" for lane in gpu.nvlinks) for gpu in (a, b)]
    if all(through):
        return min(through)
    # A virtual machine may hide the remote end of every lane. Then the driver's NVLink status decides.
    hidden = [sum(lane.active and lane.remote_kind == "unknown" for lane in gpu.nvlinks) for gpu in (a, b)]
    joined = all(hidden) and session.ask({}, "p2p", "nvmlDeviceGetP2PStatus", handle_a, handle_b, _NVLINK) == _STATUS_OK
    return min(hidden) if joined else 0


def _peer_access(session: NvmlSession, handle_a: Any, handle_b: Any) -> tuple[bool | None, str | None]:
    """Return (True, None) if peer access is possible, (False, reason) if it is denied, (None, reason) if unknown."""
    for capability in (_READ, _WRITE):
        reasons: dict[str, str] = {}
        status = session.ask(reasons, "p2p", "nvmlDeviceGetP2PStatus", handle_a, handle_b, capability)
        if status is None:
            return None, reasons["p2p"]
        if status != _STATUS_OK:
            return False, _DENIED.get(status, f"the driver gives status {status}")
    return True, None


def _pcie_kind(session: NvmlSession, a: Gpu, b: Gpu, handles: tuple[Any, Any], root: Path) -> str:
    """Return the kind of PCIe path between two GPUs: as NVML reports it, or else from sysfs below `root`."""
    level = session.ask({}, "kind", "nvmlDeviceGetTopologyCommonAncestor", *handles)
    if level in _LEVEL:
        return _LEVEL[level]
    if a.pci_id is None or b.pci_id is None:
        return "unknown"
    return distance(pci_chain(root, a.pci_id), pci_chain(root, b.pci_id), a.numa_node, b.numa_node)


def gather_links(session: NvmlSession, gpus: Sequence[Gpu], handles: Sequence[Any], root: Path) -> tuple[Link, ...]:
    """Return one link per pair of GPUs, a < b, in order.

    Args:
        session: NVML.
        gpus: the GPUs.
        handles: their NVML handles in the same order; None for a GPU that cannot be opened.
        root: the file system from which /sys is read if NVML does not return the distance.
    """
    links = []
    for (a, handle_a), (b, handle_b) in combinations(zip(gpus, handles, strict=True), 2):
        if handle_a is None or handle_b is None:
            links.append(Link(a=a.index, b=b.index, kind="unknown", reason="one of the two GPUs cannot be opened"))
            continue
        lanes = _nvlink_lanes(session, a, b, handle_a, handle_b)
        peer, reason = _peer_access(session, handle_a, handle_b)
        kind = f"NV{lanes}" if lanes else _pcie_kind(session, a, b, (handle_a, handle_b), root)
        links.append(Link(a=a.index, b=b.index, kind=kind, lanes=lanes, peer_access=peer, reason=reason))
    return tuple(links)


def reaches_directly(link: Link) -> bool:
    """Return whether one GPU of the pair may access the other's memory. If unknown, NVLink decides."""
    return link.peer_access if link.peer_access is not None else link.lanes > 0


def find_islands(indices: Sequence[int], links: Iterable[Link]) -> tuple[tuple[int, ...], ...]:
    """Group the GPUs into islands. Within an island, every pair is linked directly. Each GPU belongs to one island.

    In order, each GPU joins the first island in which it reaches every member directly. Islands reached over NVLink
    precede islands reached over PCIe, so that two GPUs with an NVLink bridge stay together. On a hybrid cube mesh of
    eight GPUs the islands are the two quads. A GPU with unknown peer access and no NVLink is a separate island.
    """
    over_nvlink = {frozenset((link.a, link.b)): link.lanes > 0 for link in links if reaches_directly(link)}
    islands: list[list[int]] = []
    for index in indices:
        reached = [island for island in islands if all(frozenset((index, other)) in over_nvlink for other in island)]
        by_nvlink = [island for island in reached if all(over_nvlink[frozenset((index, other))] for other in island)]
        home = next(iter(by_nvlink or reached), None)
        if home is None:
            islands.append([index])
        else:
            home.append(index)
    return tuple(tuple(island) for island in islands)
