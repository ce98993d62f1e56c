"""The workloads by name, with their defaults. Read by programs that never import a framework."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from gpudiag.errors import UsageError

if TYPE_CHECKING:
    from gpudiag.workloads.workload import Workload

DEFAULT_WORKLOAD = "resnet20-cifar"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadEntry:
    """One workload, as the command line needs to know it.

    Attributes:
        name: as on the command line.
        summary: one line for help and documentation.
        module: the module whose `WORKLOAD` is the class.
        gpu_batch: samples per GPU and step, unless told.
        cpu_batch: samples per CPU process and step, unless told: small enough for a step of about a second.
        images: its input is images, for which a memory format can be chosen.
    """

    name: str
    summary: str
    module: str
    gpu_batch: int
    cpu_batch: int
    images: bool = False


_ENTRIES = (
    WorkloadEntry(
        name="resnet20-cifar",
        summary="ResNet-20 on 32x32 images, 0.27 million parameters: many small kernels.",
        module="gpudiag.workloads.resnet_cifar",
        gpu_batch=128,
        cpu_batch=16,
        images=True,
    ),
    WorkloadEntry(
        name="mlp",
        summary="Five fully connected layers, 41.2 million parameters: little compute per byte exchanged.",
        module="gpudiag.workloads.mlp",
        gpu_batch=256,
        cpu_batch=32,
    ),
    WorkloadEntry(
        name="resnet50",
        summary="ResNet-50 v1.5 on 224x224 images, 25.6 million parameters: the customary yardstick.",
        module="gpudiag.workloads.resnet50",
        gpu_batch=64,
        cpu_batch=2,
        images=True,
    ),
    WorkloadEntry(
        name="vgg16",
        summary="VGG-16 on 224x224 images (64x64 on a CPU), 138 million parameters: much to exchange per step.",
        module="gpudiag.workloads.vgg16",
        gpu_batch=64,
        cpu_batch=2,
        images=True,
    ),
    WorkloadEntry(
        name="gpt",
        summary="GPT-2 small on 1024 tokens (128 on a CPU), 124 million parameters.",
        module="gpudiag.workloads.gpt",
        gpu_batch=8,
        cpu_batch=1,
    ),
)

WORKLOADS = {entry.name: entry for entry in _ENTRIES}

_OWN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Is this `module:function`, the user's own?"""
    return _OWN.fullmatch(name) is not None


def workload_entry(name: str) -> WorkloadEntry:
    """The entry of this name.

    Raises:
        UsageError: there is none; the hint lists those that there are.
    """
    if name not in WORKLOADS:
        raise UsageError(
            f"there is no workload '{name}'", f"There are: {', '.join(WORKLOADS)}; or module:function of your own."
        )
    return WORKLOADS[name]


def load_workload(name: str, *, on_gpu: bool) -> Workload:
    """Make the workload, sized for a GPU or for a CPU process. Imports the framework."""
    module = importlib.import_module(workload_entry(name).module)
    return cast("Workload", module.WORKLOAD(on_gpu=on_gpu))
