"""Read whether this process may profile GPUs, which CPUs it may use, and signs of Windows Subsystem for Linux."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from gpudiag.machine.inventory.host.cpus import allowed_cpus, cpu_quota
from gpudiag.machine.inventory.host.kernel_files import read_text
from gpudiag.model.checkup.surroundings import Surroundings

#: Bits of capabilities(7). NVIDIA's driver accepts CAP_SYS_ADMIN, and CAP_PERFMON from R565 on
#: (developer.nvidia.com, ERR_NVGPUCTRPERM).
_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
_FIRST_DRIVER_WITH_PERFMON = 565
_PARAMS = "proc/driver/nvidia/params"


def read_permissions(root: Path, driver: str | None) -> Surroundings:
    """Return the readings from files below `root`.

    Args:
        root: "/" for this machine, or a recorded tree.
        driver: version of the NVIDIA driver.
    """
    reasons: dict[str, str] = {}
    params = read_text(root / _PARAMS)
    setting = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params or "", re.MULTILINE)
    if params is None:
        reasons["profiling_restricted"] = f"/{_PARAMS} cannot be read"
    elif setting is None:
        reasons["profiling_restricted"] = f"/{_PARAMS} has no RmProfilingAdminOnly, which drivers before 418.43 lack"
    may_profile = _may_profile(root, driver)
    if may_profile is None:
        reasons["may_profile"] = "/proc/self/status shows no capabilities"
    kernel = read_text(root / "proc/sys/kernel/osrelease") or ""
    return Surroundings(
        profiling_restricted=None if setting is None else setting[1] != "0",
        may_profile=may_profile,
        allowed_cpus=allowed_cpus(root),
        cpu_quota=cpu_quota(root),
        wsl="microsoft" in kernel.lower() or (root / "dev/dxg").exists(),
        reasons=reasons,
    )


def _may_profile(root: Path, driver: str | None) -> bool | None:
    """Return whether this process has a capability with which the driver permits profiling; None if unknown."""
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", read_text(root / "proc/self/status") or "", re.MULTILINE)
    if effective is None:
        return None
    bits = int(effective[1], 16)
    release = (driver or "").partition(".")[0]
    perfmon = release.isdigit() and int(release) >= _FIRST_DRIVER_WITH_PERFMON and bool(bits >> _CAP_PERFMON & 1)
    return bool(bits >> _CAP_SYS_ADMIN & 1) or perfmon


def with_reasons(surroundings: Surroundings, reasons: dict[str, str]) -> Surroundings:
    """Add reasons to the readings."""
    return msgspec.structs.replace(surroundings, reasons={**surroundings.reasons, **reasons})
