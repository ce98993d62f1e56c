"""Which faults of the catalogue the selftest puts into TensorFlow's jobs, and what is different there."""

from __future__ import annotations

from dataclasses import replace

from gpudiag.model.selftest import LeftOut
from gpudiag.selftest.catalogue import CATALOGUE, CatalogueEntry

#: What the launcher starts in each training process.
JOB = "gpudiag.workloads.tensorflow.faults.job:run"

#: Kinds of faults that `gpudiag.workloads.tensorflow.faults.kinds` has.
_KINDS = ("none", "late-loader", "extra-compute", "syncs")

#: On CPUs too: it costs nothing where functions end when their work is done, and no alarm may come of it.
_SYNC = replace(CATALOGUE["sync"], summary="the loss is read and all devices are waited for", cpu_amount=1.0)


def in_tensorflow(
    chosen: tuple[CatalogueEntry, ...], left_out: tuple[LeftOut, ...], names: tuple[str, ...]
) -> tuple[tuple[CatalogueEntry, ...], tuple[LeftOut, ...]]:
    """The faults of a choice that TensorFlow's jobs can have, and the others.

    Args:
        chosen: what could be put into PyTorch's jobs here.
        left_out: what could not.
        names: the faults asked for; empty for all.
    """
    kept = [entry for entry in chosen if entry.kind in _KINDS and entry.name != _SYNC.name]
    without = [entry for entry in chosen if entry.kind not in _KINDS]
    if not names or _SYNC.name in names:
        kept.append(_SYNC)
    return tuple(kept), (
        *(one for one in left_out if one.fault != _SYNC.name),
        *(LeftOut(fault=entry.name, why="not put into TensorFlow's jobs") for entry in without),
    )
