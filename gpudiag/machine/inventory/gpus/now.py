"""Read the current load, clock, power and memory of each GPU through NVML, while a job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from gpudiag.machine.inventory.gpus.nvml import NvmlSession, open_nvml

_SM_CLOCK = 1


class GpuNow(msgspec.Struct, frozen=True, kw_only=True):
    """State of one GPU; None for unknown values.

    Attributes:
        index: number of the GPU in NVML, which counts in the order of PCI addresses.
        busy_percent: share of the last sampling period (a sixth of a second to one second) in which a kernel ran.
        sm_mhz: clock of the SMs.
        power_watts: power draw.
        memory_used_bytes: memory used by all processes.
    """

    index: int
    busy_percent: int | None
    sm_mhz: int | None
    power_watts: float | None
    memory_used_bytes: int | None


@contextmanager
def gpus_now(replacement: Any | None = None) -> Iterator[Callable[[], tuple[GpuNow, ...]]]:
    """Open NVML (or its `replacement`), and yield a function that returns the state of all GPUs, or () without NVML."""
    with open_nvml(replacement) as session:
        count = session.ask({}, "gpus", "nvmlDeviceGetCount") or 0
        opened = [(index, session.ask({}, "gpu", "nvmlDeviceGetHandleByIndex", index)) for index in range(count)]
        handles = [(index, handle) for index, handle in opened if handle is not None]
        yield lambda: tuple(_read(session, index, handle) for index, handle in handles)


def _read(session: NvmlSession, index: int, handle: Any) -> GpuNow:
    """Return the current state of one GPU; None for values that cannot be read, for whatever reason."""

    def ask(function: str, *arguments: Any) -> Any | None:
        return session.ask({}, function, function, handle, *arguments)

    busy, memory = ask("nvmlDeviceGetUtilizationRates"), ask("nvmlDeviceGetMemoryInfo")
    milliwatts = ask("nvmlDeviceGetPowerUsage")
    return GpuNow(
        index=index,
        busy_percent=None if busy is None else int(busy.gpu),
        sm_mhz=ask("nvmlDeviceGetClockInfo", _SM_CLOCK),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        memory_used_bytes=None if memory is None else int(memory.used),
    )
