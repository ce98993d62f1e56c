"""Detect containers and virtual machines. `root` is "/" or a recorded tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gpudiag.machine.inventory.host.kernel_files import read_text

_CGROUP_NAMES = {
    "kubepods": "Kubernetes",
    "docker": "Docker",
    "libpod": "Podman",
    "containerd": "containerd",
    "lxc": "LXC",
}
_ENVIRONMENT = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "APPTAINER_CONTAINER": "Apptainer",
    "SINGULARITY_CONTAINER": "Singularity",
}
#: Names of virtual machines, by words in the vendor and product names of the firmware (DMI).
_DMI = {
    "amazon ec2": "Amazon EC2",
    "google compute engine": "Google Compute Engine",
    "google": "Google Compute Engine",
    "microsoft corporation virtual machine": "Hyper-V or Azure",
    "vmware": "VMware",
    "qemu": "QEMU",
    "kvm": "KVM",
    "xen": "Xen",
    "virtualbox": "VirtualBox",
    "openstack": "OpenStack",
    "alibaba": "Alibaba Cloud",
}


def container_hint(root: Path, environment: Mapping[str, str]) -> str | None:
    """Return the kind of container in which this process runs; None without any sign of a container."""
    hints = [name for variable, name in _ENVIRONMENT.items() if variable in environment]
    groups = "\n".join(read_text(root / path) or "" for path in ("proc/self/cgroup", "proc/1/cgroup"))
    hints += [name for word, name in _CGROUP_NAMES.items() if word in groups]
    if (root / ".dockerenv").exists():
        hints.append("Docker")
    if (root / "run/.containerenv").exists():
        hints.append("Podman")
    return ", ".join(dict.fromkeys(hints)) or None


def hypervisor_hint(root: Path) -> str | None:
    """Return the hypervisor that the guest can see; None without any sign of a hypervisor.

    The firmware of EC2's bare-metal instances has Amazon's name too. Therefore names count only together with the CPU's
    hypervisor bit. On processors without such a bit (Arm), names suffice.
    """
    kind = read_text(root / "sys/hypervisor/type")
    # 16 KiB contain the flags of the first CPU.
    flags = re.search(r"^flags\s*:(.*)$", read_text(root / "proc/cpuinfo", most=16384) or "", re.MULTILINE)
    guest = flags is not None and " hypervisor" in flags[1]
    firmware = " ".join(
        read_text(root / "sys/class/dmi/id" / field) or "" for field in ("sys_vendor", "product_name", "bios_vendor")
    ).lower()
    hypervisor = next((name for words, name in _DMI.items() if words in firmware), None)
    if flags is not None and not guest:
        return None
    if hypervisor is None and kind:
        hypervisor = kind.capitalize()
    return hypervisor or ("unnamed (the CPU reports a hypervisor)" if guest else None)
