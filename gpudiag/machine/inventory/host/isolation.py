"""Read the state of the IOMMU, and of Access Control Services (ACS) of bridges.

If the IOMMU translates addresses, or a switch redirects traffic by ACS, a copy between two GPUs goes up to the CPU and
back down instead of staying within the switch. `root` is "/" or a recorded tree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from gpudiag.machine.inventory.host.kernel_files import read_text
from gpudiag.machine.inventory.host.pci import pci_chain

_KERNEL_OPTIONS = ("iommu", "intel_iommu", "amd_iommu", "arm-smmu.disable_bypass")

# PCI Express Base Specification, 7.7.11: Access Control Services extended capability.
_EXTENDED_START = 0x100
_ACS_ID = 0x000D
_ACS_CONTROL = 6
_REQUEST_REDIRECT = 0x04
_COMPLETION_REDIRECT = 0x08
_CONFIG_BYTES = 4096


def iommu_state(root: Path) -> tuple[str | None, str | None]:
    """Return (state of the IOMMU, None), or (None, reason). A state is `off`, `on, passthrough` or similar."""
    units = sorted(path.name for path in (root / "sys/class/iommu").glob("*"))
    options = [
        word for word in (read_text(root / "proc/cmdline") or "").split() if word.split("=")[0] in _KERNEL_OPTIONS
    ]
    suffix = f" (kernel options: {' '.join(options)})" if options else ""
    if not units:
        if not (root / "sys/class/iommu").is_dir():
            return None, "the kernel does not show /sys/class/iommu"
        return f"off{suffix}", None
    # The type of a group of devices is `identity` if the IOMMU does not translate their addresses.
    kinds = {read_text(path) for path in (root / "sys/kernel/iommu_groups").glob("*/type")} - {None}
    if not kinds:
        return f"on, mode unknown{suffix}", None
    if kinds == {"identity"}:
        return f"on, passthrough{suffix}", None
    return f"on, translating{suffix}" if "identity" not in kinds else f"on, translating some devices{suffix}", None


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a device's 4096-byte configuration space; None without ACS capability."""
    offset, seen = _EXTENDED_START, set()
    while _EXTENDED_START <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_ID:
            return int(struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0])
        offset = header >> 20  # of the next capability; 0 after the last
    return None


def acs_state(root: Path, gpu_pci_ids: Iterable[str]) -> tuple[str | None, str | None]:
    """Return (description of the ACS of the bridges above the GPUs, None), or (None, reason).

    The ACS capability is in the extended configuration space of each bridge, which the kernel shows to root only.
    """
    # `[1:-1]` omits the host bridge and the GPU.
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
