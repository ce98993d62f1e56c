"""Read clocks and PCIe links through NVML while the GPUs work. Values that cannot be read are left out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from _cuda import MIB, call

try:
    import pynvml
except ImportError:
    pynvml = None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _cuda import Gpu

#: Longest and shortest duration of the warm-up, in seconds.
_LONGEST_S = 0.6
_SHORTEST_S = 0.1


class Sensors:
    """Sensors of the GPUs. If NVML cannot be used, `reason` explains why, and no sensor has a value."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.reason: str | None = None
        self._handles: dict[int, Any] = {}
        if pynvml is None:
            self.reason = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            for gpu in gpus:
                self._handles[gpu.ordinal] = pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_id.encode())
        except pynvml.NVMLError as error:
            self.reason = f"NVML: {error}"

    def pcie_link(self, gpu: Gpu) -> tuple[int, int] | None:
        """Return the current generation and width of the GPU's PCIe link; None if they cannot be read."""
        handle = self._handles.get(gpu.ordinal)
        if handle is None:
            return None
        try:
            return (
                int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            )
        except pynvml.NVMLError:
            return None

    def clocks_mhz(self, gpu: Gpu) -> dict[str, int]:
        """Return the current clocks `sm_mhz` and `memory_mhz`, without those that cannot be read."""
        handle = self._handles.get(gpu.ordinal)
        clocks: dict[str, int] = {}
        if handle is None:
            return clocks
        for name, kind in (("sm_mhz", pynvml.NVML_CLOCK_SM), ("memory_mhz", pynvml.NVML_CLOCK_MEM)):
            try:
                clocks[name] = int(pynvml.nvmlDeviceGetClockInfo(handle, kind))
            except pynvml.NVMLError:
                continue
        return clocks


def warm_up(
    gpus: Sequence[Gpu], sensors: Sensors, buffers: Sequence[tuple[int, int]], size: int
) -> list[dict[str, int]]:
    """Keep all GPUs busy with on-device copies until their clocks are stable, for at most 0.6 s.

    Args:
        gpus: the GPUs.
        sensors: reads the clocks of these GPUs.
        buffers: source and target address on each GPU.
        size: bytes of each buffer.

    Returns:
        The clocks of each GPU, as `Sensors.clocks_mhz` returns them.
    """
    began = time.perf_counter()
    before: list[dict[str, int]] = []
    while (elapsed := time.perf_counter() - began) < _LONGEST_S:
        for gpu, (source, target) in zip(gpus, buffers, strict=True):
            gpu.use()
            for _ in range(max(1, 4096 * MIB // size)):  # 4 GiB per GPU, some milliseconds
                call("cuMemcpyAsync", target, source, size, gpu.stream)
        now = [sensors.clocks_mhz(gpu) for gpu in gpus]
        for gpu in gpus:
            gpu.wait()
        if now == before and elapsed > _SHORTEST_S:
            break
        before = now
    return before
