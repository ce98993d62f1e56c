"""Kinds of events by the categories and names that profilers of different years and vendors gave them."""

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

#: Accelerators by the beginning of their categories (`mtia_ccp_events`, `hpu_op`, `privateuse1_kernel`).
_ACCELERATOR = re.compile(
    r"(?:[a-z0-9]+_)?(mtia|hpu|npu|xpu|tpu|mlu|musa|gcu|ipu|neuron|ascend|privateuse1|glow)(?:_|$)"
)
#: Accelerators whose kernels have the same category as a GPU's.
_READ = ("xpu",)
#: Endings of an accelerator's categories that belong to the host.
_HOST_ENDINGS = ("runtime", "driver", "insight", "counters")
#: Accelerators by the beginning of their operators, for traces that give the accelerator's events no category.
_OPERATOR_STARTS = {"npu::": "NPU", "AscendCL@": "NPU", "hpu::": "HPU", "mlu::": "MLU"}

_PROFILER_SPAN = "trace"

#: Known and not needed: counters, and arrows, because events are joined by correlation.
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

#: Named ranges, which profilers before 2022 recorded as operators.
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

#: A module's call as gpudiag marks it, an operator for the profiler.
_MODULE = "gpudiag.module:"


def kind_of(category: str) -> EventKind | None:
    """Return the kind of a category in any case; None if it is not read."""
    lowered = category.lower()
    kind = _KINDS.get(lowered)
    if kind is None and lowered.endswith(_RUNTIME_ENDINGS):
        return EventKind.RUNTIME
    return kind


def unread_accelerator(category: str) -> str | None:
    """Return the accelerator whose activity this category holds; None if it is read, or belongs to the host.

    >>> unread_accelerator("mtia_ccp_events"), unread_accelerator("mtia_runtime"), unread_accelerator("kernel")
    ('MTIA', None, None)
    """
    if kind_of(category) is not None or is_known(category) or category.lower().endswith(_HOST_ENDINGS):
        return None
    match = _ACCELERATOR.match(category.lower())
    return match[1].upper() if match else None


def called_accelerator(category: str) -> str | None:
    """Return the accelerator, other than a GPU, that host calls of this category address.

    >>> called_accelerator("mtia_runtime"), called_accelerator("cuda_runtime")
    ('MTIA', None)
    """
    match = _ACCELERATOR.match(category.lower())
    is_call = match is not None and match[1] not in _READ and category.lower().endswith(_RUNTIME_ENDINGS)
    return match[1].upper() if match is not None and is_call else None


def operators_accelerator(name: str) -> str | None:
    """Return the accelerator of an operator of this name; None if the name does not state it."""
    return next((device for start, device in _OPERATOR_STARTS.items() if name.startswith(start)), None)


def is_profiler_span(category: str) -> bool:
    """Return whether the category holds the profiler's span of its own recording."""
    return category.lower() == _PROFILER_SPAN


def is_known(category: str) -> bool:
    """Return whether a category that is not read is left out on purpose."""
    return category.lower() in _LEFT_OUT


def kind_of_operator(name: str) -> EventKind:
    """Return the kind of an operator of this name: operator, named range, or mark of a module's call."""
    if name.startswith(_MODULE):
        return EventKind.MODULE
    return EventKind.ANNOTATION if name.startswith(_ANNOTATION_STARTS) else EventKind.OPERATOR
