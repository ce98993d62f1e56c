"""What was measured of this machine, kept for the user: a profile needs figures of the links, but not new ones always.

A figure holds for the same GPUs, driver and communication variables. It is kept for a day, since links and neighbours
change, in files that only the user can read and write.
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

#: Seconds for which figures hold.
MAX_AGE_S = 24 * 3600
#: Files kept; the oldest go first.
MOST_FILES = 16
#: Transports that a training run may ask for; facts are kept under each that they have.
_TRANSPORTS = ("nccl", "nccl-no-p2p")


def cache_directory(environment: Mapping[str, str] | None = None) -> Path:
    """`$XDG_CACHE_HOME/gpudiag/probes`, by default in ~/.cache (XDG Base Directory Specification)."""
    return cache_home(os.environ if environment is None else environment) / "gpudiag" / "probes"


def cached_measurements(inventory: Facts, transport: str, directory: Path | None = None) -> Facts | None:
    """The inventory with what was measured of the same machine within a day, an all-reduce by `transport` among it.

    None where there is nothing fit to use, or the directory is not the user's own.
    """
    try:
        directory = cache_directory() if directory is None else directory
        path = directory / _name(inventory, transport)
        if not is_private(directory) or not 0 <= time.time() - path.stat().st_mtime <= MAX_AGE_S:
            return None
        measured = load_facts(path)
    except (OSError, RuntimeError, GpudiagError):  # RuntimeError: this user has no home directory
        return None
    if _machine(measured) != _machine(inventory) or not _has(measured, transport):
        return None
    return with_measurements(inventory, measured)


def keep_measurements(facts: Facts, directory: Path | None = None) -> None:
    """Keep what was measured for `cached_measurements`; what cannot be written is not, as it can be measured again."""
    transports = [transport for transport in _TRANSPORTS if _has(facts, transport)]
    if not transports:
        return
    with suppress(OSError, RuntimeError):
        directory = cache_directory() if directory is None else directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(directory):
            return
        for transport in transports:
            write_whole(directory / _name(facts, transport), encode_json(facts), mode=0o600)
        files = sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)


def with_measurements(inventory: Facts, measured: Facts) -> Facts:
    """A fresh inventory with the figures of `measured`, which was taken of the same machine before."""
    before = {gpu.uuid: gpu for gpu in measured.gpus}
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(_with_link(gpu, before.get(gpu.uuid)) for gpu in inventory.gpus),
        bandwidth=measured.bandwidth,
        latency=measured.latency,
        collectives=measured.collectives,
        collective_fits=measured.collective_fits,
        skipped=tuple(dict.fromkeys([*inventory.skipped, *measured.skipped])),
        probes={**measured.probes, "measured": measured.created},
    )


def _with_link(gpu: Gpu, before: Gpu | None) -> Gpu:
    """A link's generation counts under load only, and was read so then."""
    if before is None or not before.pcie.under_load:
        return gpu
    return msgspec.structs.replace(gpu, pcie=before.pcie, memory_bus_bits=gpu.memory_bus_bits or before.memory_bus_bits)


def _machine(facts: Facts) -> dict[str, object]:
    """What figures depend on: if any of it changes they are measured again."""
    return {
        "host": facts.host.name,
        "driver": facts.host.driver,
        "gpus": [(gpu.index, gpu.uuid, gpu.pci_id, gpu.visible) for gpu in facts.gpus],
        "links": [(link.a, link.b, link.kind, link.peer_access) for link in facts.links],
        "environment": {
            name: value for name, value in facts.host.environment.items() if name.startswith(("NCCL_", "CUDA_VISIBLE"))
        },
        "gpudiag": facts.version,
    }


def _name(facts: Facts, transport: str) -> str:
    machine = msgspec.json.encode(_machine(facts), order="deterministic")
    return f"{hashlib.sha256(machine).hexdigest()[:32]}-{transport}.json"


def _has(facts: Facts, transport: str) -> bool:
    return any(call.strategy == transport for call in facts.collectives)
