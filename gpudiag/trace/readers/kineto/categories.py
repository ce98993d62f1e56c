"""What events are: the categories and names that profilers of different years and vendors gave them."""

from __future__ import annotations

import re

from gpudiag.model.event import EventKind

#: Categories of Kineto, lower case. 2021's were `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset`; since 2022 they
#: are `cpu_op` and so on (libkineto, ActivityType.cpp).
_KINDS = {
    "cpu_op": EventKind.OPERATOR,
    "operator": EventKind.OPERATOR,
    "user_annotation": EventKind.ANNOTATION,
    "python_function": EventKind.PYTHON,
    "kernel": EventKind.KERNEL,
    "concurrent_kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.COPY,
    "memcpy": EventKind.COPY,
    "gpu_memset": EventKind.MEMSET,
    "memset": EventKind.MEMSET,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "overhead": EventKind.OVERHEAD,
    "cuda_sync": EventKind.DEVICE_SYNC,
}

#: Host calls: `cuda_runtime`, `cuda_driver`, `Runtime`, `hip_runtime`, `xpu_runtime`, `privateuse1_driver`, …
_RUNTIME_ENDINGS = ("runtime", "driver")

#: Accelerators by what their categories begin with (`mtia_ccp_events`, `hpu_op`, `privateuse1_kernel`).
_ACCELERATOR = re.compile(
    r"(?:[a-z0-9]+_)?(mtia|hpu|npu|xpu|tpu|mlu|musa|gcu|ipu|neuron|ascend|privateuse1|glow)(?:_|$)"
)
#: Of these the kernels have the category of any GPU's.
_READ = ("xpu",)
#: What such categories are of where they are of the host.
_OF_HOST = ("runtime", "driver", "insight", "counters")
#: Accelerators by what their operators begin with, in traces that give the accelerator's own events no category.
_OPERATORS_OF = {"npu::": "NPU", "AscendCL@": "NPU", "hpu::": "HPU", "mlu::": "MLU"}

_PROFILER_SPAN = "trace"

#: Known, and of no use here: memory counters, hardware counters, our own joins are by correlation.
_LEFT_OUT = {
    _PROFILER_SPAN,
    "cpu_instant_event",
    "cuda_event",
    "cuda_profiler_range",
    "external_correlation",
    "ac2g",
    "async",
    "fwdbwd",
    "async_cpu_to_gpu",
    "forward_backward",
}

#: Ranges that someone named, which profilers before 2022 filed under operators.
_ANNOTATION_STARTS = (
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(DataLoader)#",
    "enumerate(DataPipe)#",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "FSDP::",
    "nccl:",
    "gloo:",
    "mpi:",
    "ucc:",
    "gpudiag.",
    "## ",
)

#: A module's call, as gpudiag marks it: operators to the profiler.
_MODULE = "gpudiag.module:"


def kind_of(category: str) -> EventKind | None:
    """The kind of a category, in whatever case it is written; None for one that is not read."""
    lowered = category.lower()
    kind = _KINDS.get(lowered)
    if kind is None and lowered.endswith(_RUNTIME_ENDINGS):
        return EventKind.RUNTIME
    return kind


def unread_accelerator(category: str) -> str | None:
    """Return the name of the accelerator whose activity this category holds; None where it is read, or is the host's.

    >>> unread_accelerator("mtia_ccp_events"), unread_accelerator("mtia_runtime"), unread_accelerator("kernel")
    ('MTIA', None, None)
    """
    if kind_of(category) is not None or is_known(category) or category.lower().endswith(_OF_HOST):
        return None
    match = _ACCELERATOR.match(category.lower())
    return match[1].upper() if match else None


def called_accelerator(category: str) -> str | None:
    """Return the name of the accelerator, other than a GPU, that host calls of this category are made to.

    >>> called_accelerator("mtia_runtime"), called_accelerator("cuda_runtime")
    ('MTIA', None)
    """
    match = _ACCELERATOR.match(category.lower())
    is_call = match is not None and match[1] not in _READ and category.lower().endswith(_RUNTIME_ENDINGS)
    return match[1].upper() if match is not None and is_call else None


def operators_accelerator(name: str) -> str | None:
    """Return the name of the accelerator that an operator of this name is of; None where the name does not say."""
    return next((device for start, device in _OPERATORS_OF.items() if name.startswith(start)), None)


def is_profiler_span(category: str) -> bool:
    """Whether it is the profiler's own span of its recording."""
    return category.lower() == _PROFILER_SPAN


def is_known(category: str) -> bool:
    """Whether a category that is not read is left out on purpose."""
    return category.lower() in _LEFT_OUT


def kind_of_operator(name: str) -> EventKind:
    """What an operator of this name is: one, a range that someone named, or a mark of a module's call."""
    if name.startswith(_MODULE):
        return EventKind.MODULE
    return EventKind.ANNOTATION if name.startswith(_ANNOTATION_STARTS) else EventKind.OPERATOR
