"""List network and RDMA devices, and the distance of each from every GPU. `root` is "/" or a recorded tree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from gpudiag.machine.inventory.host.kernel_files import read_int, read_text
from gpudiag.machine.inventory.host.pci import distance, normal_pci_id, numa_node, pci_chain
from gpudiag.model.facts import Gpu, Nic

_ARPHRD_ETHER = 1
_ARPHRD_INFINIBAND = 32
_GB_PER_MBIT = 1e6 / 8 / 1e9
_GB_PER_GBIT = 1 / 8


def _pci_id(device: Path) -> str | None:
    """Return the PCI id of a sysfs device, or of its nearest parent on PCI (for virtio); None without such an id."""
    try:
        names = device.resolve(strict=True).parts
    except OSError:
        return None
    return next((address for name in reversed(names) if (address := normal_pci_id(name)) is not None), None)


def _ethernet(root: Path) -> list[Nic]:
    """Return the network interfaces that have hardware, without distances."""
    nics = []
    for entry in sorted((root / "sys/class/net").glob("*")):
        device = entry / "device"
        if not device.exists():  # loopback, bridges and tunnels have no hardware
            continue
        link_type = read_int(entry / "type")
        megabits = read_int(entry / "speed")  # -1 or unreadable if the link is down
        kind: Literal["ethernet", "infiniband", "other"] = "other"
        if link_type == _ARPHRD_ETHER:
            kind = "ethernet"
        elif link_type == _ARPHRD_INFINIBAND:
            kind = "infiniband"
        nics.append(
            Nic(
                name=entry.name,
                kind=kind,
                pci_id=_pci_id(device),
                speed_gb_per_s=megabits * _GB_PER_MBIT if megabits is not None and megabits > 0 else None,
            )
        )
    return nics


def _rdma(root: Path) -> list[Nic]:
    """Return the RDMA devices, without distances. A device's speed is that of its fastest port."""
    nics = []
    for entry in sorted((root / "sys/class/infiniband").glob("*")):
        ports = sorted((entry / "ports").glob("*"))
        layers = {read_text(port / "link_layer") for port in ports}
        rates = [re.match(r"([\d.]+) Gb/sec", read_text(port / "rate") or "") for port in ports]
        gigabits = [float(rate[1]) for rate in rates if rate]
        kind: Literal["infiniband", "roce", "other"] = "other"
        if "InfiniBand" in layers:
            kind = "infiniband"
        elif "Ethernet" in layers:
            kind = "roce"
        nics.append(
            Nic(
                name=entry.name,
                kind=kind,
                pci_id=_pci_id(entry / "device"),
                speed_gb_per_s=max(gigabits) * _GB_PER_GBIT if gigabits else None,
            )
        )
    return nics


def gather_nics(root: Path, gpus: Sequence[Gpu]) -> tuple[Nic, ...]:
    """Return every network interface with hardware and every RDMA device, with its distance to every GPU."""
    complete = []
    for nic in (*_ethernet(root), *_rdma(root)):
        node = numa_node(root, nic.pci_id) if nic.pci_id else None
        chain = pci_chain(root, nic.pci_id) if nic.pci_id else None
        distances = {
            str(gpu.index): distance(chain, pci_chain(root, gpu.pci_id) if gpu.pci_id else None, node, gpu.numa_node)
            for gpu in gpus
        }
        complete.append(replace(nic, numa_node=node, distance=distances))
    return tuple(complete)
