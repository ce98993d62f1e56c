"""Apply CUDA_VISIBLE_DEVICES.

According to the CUDA programming guide (Environment variables), an entry is an index, a GPU UUID or an unambiguous
prefix of a UUID, or a MIG identifier. The first invalid entry ends the list. An empty string hides every GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.facts import Gpu


class VisibleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """NVML indices of the GPUs that CUDA shows, in CUDA's order, and a note if CUDA_VISIBLE_DEVICES looks wrong."""

    indices: tuple[int, ...]
    note: str | None = None


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> int | None:
    matches = [gpu.index for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def _by_mig(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """Return the index of the GPU with this MIG instance; None if no GPU or several GPUs match."""
    # Drivers before 470 name an instance MIG-GPU-<uuid of the GPU>/<instance>/<compute instance>; later ones, a UUID.
    if entry.lower().startswith("mig-gpu-"):
        return _by_uuid(entry[4:].partition("/")[0], gpus)
    owners = {
        gpu.index
        for gpu in gpus
        for instance in gpu.mig_instances
        if instance.uuid is not None and instance.uuid.lower().startswith(entry.lower())
    }
    return owners.pop() if len(owners) == 1 else None


def _resolve(entry: str, gpus: Sequence[Gpu]) -> int | None:
    """Return the index of the GPU that an entry of CUDA_VISIBLE_DEVICES names; None for an invalid entry."""
    if entry.lower().startswith("mig-"):
        return _by_mig(entry, gpus)
    if entry.lower().startswith("gpu-"):
        return _by_uuid(entry, gpus)
    # An entry that is not the index of a GPU, such as -1 or a number of more than 6 digits, is invalid.
    is_number = entry.isascii() and entry.isdigit() and len(entry) <= 6
    return gpus[int(entry)].index if is_number and int(entry) < len(gpus) else None


def cuda_visible(value: str | None, gpus: Sequence[Gpu], device_order: str | None = None) -> VisibleGpus:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible.

    Args:
        value: the variable; None if it is not set.
        gpus: every GPU of the machine, in NVML's order, which is by PCI address.
        device_order: CUDA_DEVICE_ORDER; None if it is not set.

    Returns:
        NVML indices in the order of the entries. An entry that is a number is taken as an NVML index. With several GPU
        models, CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the note then warns of this
        difference.
    """
    if value is None:
        return VisibleGpus(indices=tuple(gpu.index for gpu in gpus))
    if not value.strip():
        return VisibleGpus(indices=(), note="CUDA_VISIBLE_DEVICES is empty: CUDA programs see no GPU")
    indices: list[int] = []
    notes: list[str] = []
    entries = [entry.strip() for entry in value.split(",")]
    for position, entry in enumerate(entries):
        index = _resolve(entry, gpus)
        if index is None:
            visible = "no GPU" if not indices else f"only the {len(indices)} before it"
            notes.append(f"CUDA_VISIBLE_DEVICES entry {entry[:80]!r} names no GPU here: CUDA programs see {visible}")
            entries = entries[:position]
            break
        if index not in indices:
            indices.append(index)
        elif not entry.lower().startswith("mig-"):  # several MIG instances of one GPU may be visible
            notes.append(f"CUDA_VISIBLE_DEVICES names GPU {index} twice, which CUDA may refuse")
    if any(entry.isdigit() for entry in entries) and _numbering_differs(gpus, device_order):
        notes.append(
            "GPUs of different models: CUDA numbers the fastest first, nvidia-smi by PCI address; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree"
        )
    return VisibleGpus(indices=tuple(indices), note="; ".join(notes) or None)


def _numbering_differs(gpus: Sequence[Gpu], device_order: str | None) -> bool:
    return len({gpu.name for gpu in gpus}) > 1 and (device_order or "").upper() != "PCI_BUS_ID"
