"""Which GPUs a CUDA program would see under CUDA_VISIBLE_DEVICES.

By the CUDA programming guide (Environment variables): entries are indices, GPU UUIDs or unambiguous beginnings of
them, or MIG identifiers; the first invalid entry ends the list; an empty string hides every GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.facts import Gpu


class VisibleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """NVML indices of the GPUs that CUDA would show, in its order, and what is odd about the variable, if anything."""

    indices: tuple[int, ...]
    note: str | None = None


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> int | None:
    matches = [gpu.index for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def _by_mig(entry: str, gpus: Sequence[Gpu]) -> int | None:
    # Since driver 470 a MIG device has a UUID of its own; before, MIG-GPU-<uuid>/<instance>/<compute instance>.
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
    if entry.lower().startswith("mig-"):
        return _by_mig(entry, gpus)
    if entry.lower().startswith("gpu-"):
        return _by_uuid(entry, gpus)
    # -1 and anything else that is no index of a GPU ends the list.
    is_number = entry.isascii() and entry.isdigit() and len(entry) <= 6
    return int(entry) if is_number and int(entry) < len(gpus) else None


def cuda_visible(value: str | None, gpus: Sequence[Gpu], device_order: str | None = None) -> VisibleGpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible.

    Args:
        value: the variable; None when it is not set.
        gpus: every GPU of the machine, in NVML's order, which is by PCI address.
        device_order: CUDA_DEVICE_ORDER; None when it is not set.

    Returns:
        Indices in CUDA's order. An index into GPUs of several models is looked up in PCI order; unless
        CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA itself counts the fastest first, and the note says so.
    """
    if value is None:
        return VisibleGpus(indices=tuple(gpu.index for gpu in gpus))
    if not value.strip():
        return VisibleGpus(indices=(), note="CUDA_VISIBLE_DEVICES is empty: CUDA programs see no GPU")
    chosen: list[int] = []
    notes: list[str] = []
    by_index = False
    for entry in (part.strip() for part in value.split(",")):
        index = _resolve(entry, gpus)
        if index is None:
            hidden = "no GPU" if not chosen else f"only the {len(chosen)} before it"
            notes.append(f"CUDA_VISIBLE_DEVICES entry {entry[:80]!r} names no GPU here: CUDA programs see {hidden}")
            break
        by_index = by_index or entry.isdigit()
        position = gpus[index].index if entry.isdigit() else index
        if position in chosen and not entry.lower().startswith("mig-"):
            notes.append(f"CUDA_VISIBLE_DEVICES names GPU {position} twice, which CUDA may refuse")
        elif position not in chosen:
            chosen.append(position)
    if by_index and len({gpu.name for gpu in gpus}) > 1 and (device_order or "").upper() != "PCI_BUS_ID":
        notes.append(
            "GPUs of different models: CUDA numbers the fastest first, nvidia-smi by PCI address; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID so that both agree"
        )
    return VisibleGpus(indices=tuple(chosen), note="; ".join(notes) or None)
