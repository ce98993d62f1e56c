"""Normalise kinds and times of events: categories of all versions and vendors, and microseconds to nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.model.event import EventKind
from gpudiag.units import NS_PER_US

#: Kineto's categories in lower case: in 2021 `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset`; since 2022 `cpu_op`
#: and so on (libkineto, ActivityType.cpp).
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
#: Accelerators whose kernels are read, because such kernels have the same category as a GPU's kernels.
_READ = ("xpu",)
#: Endings of categories that contain an accelerator's name but belong to the host.
_HOST_ENDINGS = ("runtime", "driver", "insight", "counters")
#: Beginning of operators' names → accelerator, for traces that give the accelerator's events no category.
_OPERATOR_STARTS = {"npu::": "NPU", "AscendCL@": "NPU", "hpu::": "HPU", "mlu::": "MLU"}

_PROFILER_SPAN = "trace"

#: Categories that do not become events: the profiler's spans, instants, counters, and arrows between events, because
#: correlations join events.
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

#: Beginnings of the names of ranges that profilers before 2022 recorded as operators.
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

#: Beginning of the name with which gpudiag marks a module's call. The profiler records the mark as an operator.
_MODULE = "gpudiag.module:"
_DAY_US = 86_400e6
_LAST_US = 4e15  # the year 2096: later times are invalid; fits int64 nanoseconds


def kind_of(category: str) -> EventKind | None:
    """Return the kind of events of this category, ignoring case; None if such events are not read."""
    lowered = category.lower()
    kind = _KINDS.get(lowered)
    if kind is None and lowered.endswith(_RUNTIME_ENDINGS):
        return EventKind.RUNTIME
    return kind


def unread_accelerator(category: str) -> str | None:
    """Return the accelerator whose activity has this category; None if the category is read or belongs to the host.

    >>> unread_accelerator("mtia_ccp_events"), unread_accelerator("mtia_runtime"), unread_accelerator("kernel")
    ('MTIA', None, None)
    """
    if kind_of(category) is not None or is_known(category) or category.lower().endswith(_HOST_ENDINGS):
        return None
    match = _ACCELERATOR.match(category.lower())
    return match[1].upper() if match else None


def called_accelerator(category: str) -> str | None:
    """Return the accelerator of host calls of this category; None for GPUs, XPUs, and events that are no calls.

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
    """Return whether events of this category are spans in which the profiler recorded."""
    return category.lower() == _PROFILER_SPAN


def is_known(category: str) -> bool:
    """Return whether a category is known and left out on purpose."""
    return category.lower() in _LEFT_OUT


def kind_of_operator(name: str) -> EventKind:
    """Return the kind of an operator of this name: operator, named range, or mark of a module's call."""
    if name.startswith(_MODULE):
        return EventKind.MODULE
    return EventKind.ANNOTATION if name.startswith(_ANNOTATION_STARTS) else EventKind.OPERATOR


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Sorted starts and ends.

    Attributes:
        order: intp[m], indices of the m <= n valid events, sorted by start (ties: longer first, then as given).
        start_ns: int64[m], starts in this order, in ns since the first start.
        end_ns: int64[m], ends in this order, in ns since the first start.
        first_ns: the first start on the profiler's clock.
    """

    order: NDArray[np.intp]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    first_ns: int

    @classmethod
    def from_microseconds(
        cls,
        start_us: NDArray[np.float64],
        length_us: NDArray[np.float64],
        recordings: Sequence[tuple[float, float]],
        notes: list[str],
    ) -> Times:
        """Convert times, repair or leave out invalid times, and sort.

        Args:
            start_us: float64[n], starts.
            length_us: float64[n], durations.
            recordings: (start, duration) in µs of the spans in which the profiler recorded. Events that are longer, and
                end after the last span, are cut.
            notes: receives descriptions of repairs and omissions.
        """
        stay = _possible(start_us, length_us)
        if len(stay) < len(start_us):
            lost = len(start_us) - len(stay)
            notes.append(f"{lost} events had impossible times (off by more than a day) and were left out")
            start_us, length_us = start_us[stay], length_us[stay]
        if (negative := length_us < 0).any():
            notes.append(f"{int(negative.sum())} events had negative durations; taken as 0")
            length_us = np.where(negative, 0.0, length_us)
        start_ns = nanoseconds(start_us)
        end_ns = start_ns + nanoseconds(length_us)
        _cut_endless(start_ns, end_ns, recordings, notes)
        order = _order(start_ns, end_ns)
        start_ns, end_ns = start_ns[order], end_ns[order]
        first_ns = int(start_ns[0]) if len(start_ns) else 0
        return cls(order=stay[order], start_ns=start_ns - first_ns, end_ns=end_ns - first_ns, first_ns=first_ns)


def nanoseconds(microseconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert microseconds to integer nanoseconds. Integer part and fraction are scaled separately, to keep precision.

    Example: a float can represent 1712000000000000.25, but not 1000 times this number.
    """
    whole = np.floor(microseconds)
    fraction_ns = np.rint((microseconds - whole) * NS_PER_US).astype(np.int64)
    return np.asarray(whole.astype(np.int64) * NS_PER_US + fraction_ns, dtype=np.int64)


def _possible(start_us: NDArray[np.float64], length_us: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the indices of events that start within a day of the median start and last at most a day."""
    # Comparisons with NaN are false, so NaN is left out too.
    possible = (np.abs(start_us) < _LAST_US) & (np.abs(length_us) <= _DAY_US)
    if possible.any() and np.ptp(start_us[possible]) > _DAY_US:
        possible &= np.abs(start_us - np.median(start_us[possible])) <= _DAY_US
    return np.flatnonzero(possible)


def _cut_endless(
    start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], recordings: Sequence[tuple[float, float]], notes: list[str]
) -> None:
    """Cut, in place, events that are longer than the recording and end after it, because their end was not recorded.

    `recordings` and `notes` are as in `Times.from_microseconds`.
    """
    spans = [(start, length) for start, length in recordings if abs(start) < _LAST_US and 0 < length <= _DAY_US]
    if not spans:
        return
    begins = nanoseconds(np.array([start for start, _ in spans]))
    lengths = nanoseconds(np.array([length for _, length in spans]))
    last_ns = int((begins + lengths).max())
    endless = (end_ns > last_ns) & (end_ns - start_ns > int(lengths.max()))
    if endless.any():
        notes.append(f"{int(endless.sum())} events claim to last longer than the recording; cut at its end")
        end_ns[endless] = np.maximum(start_ns[endless], last_ns)


def _order(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return indices sorted by start; ties: longer first, then as given."""
    order = np.argsort(start_ns, kind="stable")
    equal = np.diff(start_ns[order]) == 0
    if equal.any():
        # Few starts are equal, so only events with equal starts are sorted again, among their own positions.
        tied_positions = np.flatnonzero(np.append(equal, False) | np.insert(equal, 0, False))
        tied = order[tied_positions]
        order[tied_positions] = tied[np.lexsort((-end_ns[tied], start_ns[tied]))]
    return order
