"""Cache the measurements of this machine, because each profile needs them and link bandwidths rarely change.

Cached measurements are used only with the same GPUs, driver and communication variables. Measurements are valid for a
day, because links and neighbours may change. Only the user can read and write the files.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpudiag.errors import GpudiagError
from gpudiag.machine.facts_file import load_facts
from gpudiag.model.facts import Facts, Gpu
from gpudiag.model.run_directory import cache_home, encode_json, is_private, write_whole

#: Seconds for which measurements stay valid.
MAX_AGE_S = 24 * 3600
#: Maximum number of files; the oldest are deleted.
MOST_FILES = 16
#: Transports that a training run may need. Facts are saved once for each of these transports that was measured.
_TRANSPORTS = ("nccl", "nccl-no-p2p")


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_CACHE_HOME/gpudiag/probes`, by default in ~/.cache (XDG Base Directory Specification)."""
    return cache_home(os.environ if environment is None else environment) / "gpudiag" / "probes"


def cached_measurements(inventory: Facts, transport: str, directory: Path | None = None) -> Facts | None:
    """Return the inventory with cached measurements of the same machine that include an all-reduce by `transport`.

    Return None if there are no valid measurements, or if the directory is not private to the user.
    """
    try:
        directory = cache_directory() if directory is None else directory
        path = directory / _file_name(inventory, transport)
        if not is_private(directory) or not 0 <= time.time() - path.stat().st_mtime <= MAX_AGE_S:
            return None
        measured = load_facts(path)
    except (OSError, RuntimeError, GpudiagError):  # RuntimeError means that this user has no home directory
        return None
    if _machine_identity(measured) != _machine_identity(inventory) or not _has_all_reduce(measured, transport):
        return None
    return with_measurements(inventory, measured)


def keep_measurements(facts: Facts, directory: Path | None = None) -> None:
    """Save measurements for `cached_measurements`. Write errors are ignored, because measurements can be repeated."""
    transports = [transport for transport in _TRANSPORTS if _has_all_reduce(facts, transport)]
    if not transports:
        return
    with suppress(OSError, RuntimeError):
        directory = cache_directory() if directory is None else directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(directory):  # other users could change the measurements
            return
        for transport in transports:
            write_whole(directory / _file_name(facts, transport), encode_json(facts), mode=0o600)
        files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def with_measurements(inventory: Facts, measured: Facts) -> Facts:
    """Return a fresh inventory with the earlier measurements of the same machine."""
    before = {gpu.uuid: gpu for gpu in measured.gpus}
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(_with_link(gpu, before.get(gpu.uuid)) for gpu in inventory.gpus),
        bandwidth=measured.bandwidth,
        latency=measured.latency,
        collectives=measured.collectives,
        collective_fits=measured.collective_fits,
        skipped=tuple(dict.fromkeys([*inventory.skipped, *measured.skipped])),
        probes={**measured.probes, "measured": measured.created},  # the time of the measurements
    )


def _with_link(gpu: Gpu, before: Gpu | None) -> Gpu:
    """Return the GPU with its earlier PCIe link if this was read under load, because an idle link reduces its speed."""
    if before is None or not before.pcie.under_load:
        return gpu
    return msgspec.structs.replace(gpu, pcie=before.pcie, memory_bus_bits=gpu.memory_bus_bits or before.memory_bus_bits)


def _machine_identity(facts: Facts) -> dict[str, object]:
    """Return the facts on which measurements depend."""
    return {
        "host": facts.host.name,
        "driver": facts.host.driver,
        "gpus": [(gpu.index, gpu.uuid, gpu.pci_id, gpu.visible) for gpu in facts.gpus],
        "links": [(link.a, link.b, link.kind, link.peer_access) for link in facts.links],
        "environment": {
            name: value for name, value in facts.host.environment.items() if name.startswith(("NCCL_", "CUDA_VISIBLE"))
        },
        "gpudiag": facts.version,  # another version may measure differently
    }


def _file_name(facts: Facts, transport: str) -> str:
    machine = msgspec.json.encode(_machine_identity(facts), order="deterministic")
    return f"{hashlib.sha256(machine).hexdigest()[:32]}-{transport}.json"


def _has_all_reduce(facts: Facts, transport: str) -> bool:
    return any(call.strategy == transport for call in facts.collectives)
