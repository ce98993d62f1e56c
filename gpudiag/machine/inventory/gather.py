"""Gather the inventory of this machine: GPUs, links and host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gpudiag import __version__
from gpudiag.machine.inventory.gpus.gather import gather_gpus
from gpudiag.machine.inventory.gpus.nvml import NvmlSession, open_nvml
from gpudiag.machine.inventory.gpus.visible import cuda_visible
from gpudiag.machine.inventory.host.gather import gather_host
from gpudiag.machine.inventory.host.pci import nvidia_gpus_on_bus
from gpudiag.machine.inventory.links import find_islands, gather_links
from gpudiag.model.facts import Facts, Gpu
from gpudiag.model.sanitize import sanitize


def _cuda_version(session: NvmlSession, reasons: dict[str, str]) -> str | None:
    number = session.ask(
        reasons, "cuda_driver", ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
    )
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _why_no_gpu(session: NvmlSession, root: Path, reasons: dict[str, str]) -> None:
    """Set the reason why no GPU is listed: there is none, or its driver does not work."""
    driver_reason = session.unavailable or reasons.get("gpus") or "the driver lists none"
    pci_ids = nvidia_gpus_on_bus(root)
    if pci_ids:
        on_bus = f"PCI shows {len(pci_ids)} NVIDIA GPU{'s' if len(pci_ids) > 1 else ''} ({', '.join(pci_ids[:4])})"
        reasons["gpus"] = f"{on_bus}, but {driver_reason}"
    else:
        reasons["gpus"] = f"none on the PCI bus; {driver_reason}"


def _mark_visible(gpus: Sequence[Gpu], environment: Mapping[str, str], reasons: dict[str, str]) -> tuple[Gpu, ...]:
    visible = cuda_visible(environment.get("CUDA_VISIBLE_DEVICES"), gpus, environment.get("CUDA_DEVICE_ORDER"))
    if visible.note:
        reasons["visible"] = visible.note
    return tuple(msgspec.structs.replace(gpu, visible=gpu.index in visible.indices) for gpu in gpus)


def gather_inventory(
    nvml: Any | None = None, root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> Facts:
    """Return the inventory from NVML, /proc and /sys. The function takes well under a second, and raises no exceptions.

    Args:
        nvml: a replacement for the module `pynvml`, with the same functions and error classes.
        root: a recorded tree of /proc, /sys and /etc to read instead of "/".
        environment: a replacement for this process's environment variables.

    Returns:
        Facts without measurements and findings. Without a GPU `gpus` is empty and `host.reasons["gpus"]` has the
        reason. Strings contain no control characters. PCIe generation and width are current values, and `under_load` is
        False: an idle link may use a lower generation and width than under load.
    """
    environment = os.environ if environment is None else environment
    reasons: dict[str, str] = {}
    with open_nvml(nvml) as session:
        driver = session.ask(reasons, "driver", "nvmlSystemGetDriverVersion")
        cuda_driver = _cuda_version(session, reasons)
        gpus, handles = gather_gpus(session, root, reasons)
        links = gather_links(session, gpus, handles, root)
        if not gpus:
            _why_no_gpu(session, root, reasons)
    gpus = _mark_visible(gpus, environment, reasons)
    host = gather_host(root, environment, gpus, driver=driver, cuda_driver=cuda_driver, reasons=reasons)
    if host.hypervisor and gpus:
        host.reasons["topology"] = (
            "this is a virtual machine: distances over PCI are those that the guest sees, not those of the hardware"
        )
    facts = Facts(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        host=host,
        gpus=gpus,
        links=links,
        islands=find_islands([gpu.index for gpu in gpus], links),
    )
    return msgspec.convert(sanitize(msgspec.to_builtins(facts)), Facts)
