"""What may stand between two devices that want to talk directly: the IOMMU, and Access Control Services of bridges.

With the IOMMU translating, or with ACS redirection on a switch, a copy from one GPU to the next travels up to the CPU
and back down instead of turning round in the switch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from gpudiag.machine.inventory.host.pci import pci_chain
from gpudiag.machine.inventory.host.textfile import read_text

_KERNEL_OPTIONS = ("iommu", "intel_iommu", "amd_iommu", "arm-smmu.disable_bypass")

# PCI Express Base Specification, 7.7.11: Access Control Services extended capability.
_EXTENDED_START = 0x100
_ACS_ID = 0x000D
_ACS_CONTROL = 6
_REQUEST_REDIRECT = 0x04
_COMPLETION_REDIRECT = 0x08
_CONFIG_BYTES = 4096


def iommu_state(root: Path) -> tuple[str | None, str | None]:
    """The IOMMU in words (`off`, `on, passthrough`, `on, translating`), or None and the reason."""
    units = sorted(path.name for path in (root / "sys/class/iommu").glob("*"))
    options = [
        word for word in (read_text(root / "proc/cmdline") or "").split() if word.split("=")[0] in _KERNEL_OPTIONS
    ]
    told = f" (kernel options: {' '.join(options)})" if options else ""
    if not units:
        if not (root / "sys/class/iommu").is_dir():
            return None, "the kernel does not show /sys/class/iommu"
        return f"off{told}", None
    kinds = {read_text(path) for path in (root / "sys/kernel/iommu_groups").glob("*/type")} - {None}
    if not kinds:
        return f"on, mode unknown{told}", None
    if kinds == {"identity"}:
        return f"on, passthrough{told}", None
    return f"on, translating{told}" if "identity" not in kinds else f"on, translating some devices{told}", None


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a device's configuration space; None where it has no ACS capability.

    Args:
        config: the configuration space, all 4096 bytes.
    """
    offset, seen = _EXTENDED_START, set()
    while _EXTENDED_START <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_ID:
            return int(struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0])
        offset = header >> 20
    return None


def acs_state(root: Path, gpu_pci_ids: Iterable[str]) -> tuple[str | None, str | None]:
    """ACS of the bridges above the GPUs in words, or None and the reason.

    Reading it takes the whole configuration space of each bridge, which the kernel shows to root only.
    """
    bridges = sorted({bridge for gpu in gpu_pci_ids for bridge in (pci_chain(root, gpu) or ())[1:-1]})
    if not bridges:
        return None, "no PCI bridge is visible above a GPU"
    redirecting, readable = [], 0
    for bridge in bridges:
        try:
            config = (root / "sys/bus/pci/devices" / bridge / "config").read_bytes()
        except OSError:
            continue
        if len(config) < _CONFIG_BYTES:
            continue
        readable += 1
        control = acs_control(config)
        if control is not None and control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT):
            redirecting.append(bridge)
    if not readable:
        return None, "reading the configuration space of bridges takes root"
    if redirecting:
        return f"redirects peer traffic through the CPU at {', '.join(redirecting)}", None
    return f"no redirection at {readable} of {len(bridges)} bridges above GPUs", None
