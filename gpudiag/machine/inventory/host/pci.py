"""Read PCI devices from sysfs, and determine the distance between two of them.

The directory of a PCI device in sysfs lists the bridges above it, from the host bridge down:
`pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:03:00.0`. The distance between two devices depends on the parts
of their chains after the common prefix. The names of distances are those of `nvidia-smi topo -m`.
`root` is "/" or a recorded tree.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")

#: A host bridge, the bridges below it, and the device itself.
PciChain = tuple[str, ...]


def normal_pci_id(text: str) -> str | None:
    """Return a PCI address in sysfs's form (`0000:3b:00.0`); None for other text.

    NVML writes longer domain numbers. An address without a domain is in domain 0.
    """
    address = text.strip().lower()
    if address.count(":") == 1:
        address = f"0000:{address}"
    if not _ADDRESS.match(address):
        return None
    domain, rest = address.split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def pci_id_of(info: Any) -> str | None:
    """Return the PCI address in NVML's answer about a device; None if the answer has none."""
    bus_id = getattr(info, "busId", None)
    if bus_id is None:
        return None
    return normal_pci_id(bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id))


def device_directory(root: Path, pci_id: str) -> Path:
    """Return the sysfs directory of a device."""
    return root / "sys/bus/pci/devices" / pci_id


def pci_chain(root: Path, pci_id: str) -> PciChain | None:
    """Return the chain from the host bridge to the device, or None if sysfs does not show the device."""
    directory = device_directory(root, pci_id)
    if not directory.exists():
        return None
    names = directory.resolve().parts
    start = next((i for i, name in enumerate(names) if _ROOT.match(name)), None)
    return None if start is None else tuple(n for n in names[start:] if _ROOT.match(n) or _ADDRESS.match(n))


def numa_node(root: Path, pci_id: str) -> int | None:
    """Return the device's NUMA node; None if the firmware does not report it (sysfs then contains -1)."""
    try:
        node = int((device_directory(root, pci_id) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def distance(a: PciChain | None, b: PciChain | None, node_a: int | None, node_b: int | None) -> str:
    """Return the distance between two devices: `PIX`, `PXB`, `PHB`, `NODE`, `SYS` or `unknown`.

    In sysfs a PCIe switch is one upstream bridge, with a downstream bridge for each device. So two devices of one
    switch differ in their last two entries: `(…, upstream, downstream 1, device 1)` and `(…, upstream, downstream 2,
    device 2)`. Devices of one switch have the distance `PIX`; devices of different switches have `PXB`.

    Args:
        a, b: chains of the devices; None if unknown.
        node_a, node_b: their NUMA nodes; None if unknown.
    """
    if a is None or b is None:
        return "unknown"
    common = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        common += 1
    if common == 0:  # different host bridges
        if node_a is None or node_b is None:
            return "unknown"
        return "NODE" if node_a == node_b else "SYS"
    if common == 1:  # only the host bridge is common
        return "PHB"
    return "PIX" if max(len(a), len(b)) - common <= 2 else "PXB"


def nvidia_gpus_on_bus(root: Path) -> tuple[str, ...]:
    """Return the PCI ids of NVIDIA display and 3D controllers, with or without a driver."""
    gpus = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip().lower()
            kind = (device / "class").read_text().strip().lower()
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):
            gpus.append(device.name)
    return tuple(gpus)
