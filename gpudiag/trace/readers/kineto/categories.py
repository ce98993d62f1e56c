"""What events are: the categories and names that profilers of different years and vendors gave them."""

from __future__ import annotations

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
