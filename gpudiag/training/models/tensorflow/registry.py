"""Which workloads there are under TensorFlow; names and defaults are `gpudiag.training.models.registry`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpudiag.errors import UsageError
from gpudiag.training.models.registry import WORKLOADS, workload_entry

if TYPE_CHECKING:
    from gpudiag.training.models.tensorflow.workload import KerasWorkload  # which imports Keras


def check_workload(name: str) -> None:
    """Raise UsageError where there is no such workload, or none under TensorFlow."""
    if not workload_entry(name).trains:
        known = ", ".join(entry.name for entry in WORKLOADS.values() if entry.trains)
        raise UsageError(f"there is no {name} for TensorFlow", f"There are: {known}; or module:function of your own.")


def load_workload(name: str, *, on_gpu: bool) -> KerasWorkload:
    """Make the workload, sized for GPUs or for CPU devices. Imports TensorFlow."""
    check_workload(name)
    entry = workload_entry(name)
    return cast("KerasWorkload", entry.make(entry.module.replace(".pytorch.", ".tensorflow."), on_gpu=on_gpu))
