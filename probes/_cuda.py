"""Use GPUs through NVIDIA's cuda-bindings: contexts, buffers, streams, kernels.

The result of every call is checked. The contexts are primary contexts, because NCCL uses these too.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _numa
import numpy as np
from _protocol import Probe, ProbeError

try:
    from cuda.bindings import driver
except ImportError:  # `open_gpus` reports that cuda-bindings is missing
    driver = None

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
#: Types of kernel arguments: `_LONG` for pointers and 64-bit counts, `_INT` for 32-bit counts.
_LONG, _INT = ctypes.c_uint64, ctypes.c_uint32
#: Default number of blocks of a kernel, and of threads of a block.
_BLOCKS, _THREADS = 1024, 256


class CudaError(ProbeError):
    """A CUDA call failed; the message names the call and the error."""


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function; return its value, a tuple of several values, or None.

    Raises:
        CudaError: the call did not return CUDA_SUCCESS, or this version of cuda-bindings lacks the function.
    """
    function = getattr(driver, name, None)
    if function is None:
        raise CudaError(f"{name}: not in this version of cuda-bindings")
    status, *values = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{name}: {getattr(status, 'name', status)}")
    return values[0] if len(values) == 1 else tuple(values) or None


class Gpu:
    """One GPU with its primary context and one stream for each direction of copying.

    Every method makes this context current for the calling thread.

    Attributes:
        stream, back_stream: streams of copies to and from the GPU; all other work is queued on `stream`.
        kernels: kernel of kernels.cu by name.
        kernels_missing: reason why the driver cannot load the kernels; None if it can. Without kernels, data is not
            verified.
        context_s, kernels_s: seconds of creating the context and of loading the kernels.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.handle = call("cuDeviceGet", ordinal)
        self.pci_id = _text(call("cuDeviceGetPCIBusId", 32, self.handle)).lower()  # up to 32 characters
        self.name = _text(call("cuDeviceGetName", 96, self.handle))
        self.numa_node = _numa.node_of_pci(self.pci_id)
        self.memory_bus_bits = self._attribute("CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH")
        self.l2_bytes = self._attribute("CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE")
        began = time.perf_counter()
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        self.context_s = time.perf_counter() - began
        self.use()
        flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = call("cuStreamCreate", flags)
        self.back_stream = call("cuStreamCreate", flags)
        self._events: list[Any] = []
        self._counter = self.allocate(8)
        self.kernels: dict[str, Any] = {}
        self.kernels_missing: str | None = None
        began = time.perf_counter()
        try:
            code = ctypes.create_string_buffer((Path(__file__).parent / "kernels.ptx").read_bytes())
            module = call("cuModuleLoadData", ctypes.addressof(code))
            for name in (
                "fill_pattern",
                "count_wrong_words",
                "fill_summands",
                "count_wrong_sums",
                "wait_for_host",
                "chase_pointers",
            ):
                self.kernels[name] = call("cuModuleGetFunction", module, name.encode())
        except (CudaError, OSError) as error:
            self.kernels_missing = f"the driver cannot load this probe's kernels ({error})"
        self.kernels_s = time.perf_counter() - began

    def describe(self) -> dict[str, Any]:
        """Return the fields that identify the GPU in a result."""
        return {
            "ordinal": self.ordinal,
            "pci_id": self.pci_id,
            "name": self.name,
            "memory_bus_bits": self.memory_bus_bits,
            "l2_bytes": self.l2_bytes,
            "numa_node": self.numa_node,
        }

    def use(self) -> None:
        """Make this GPU's context current for the calling thread."""
        call("cuCtxSetCurrent", self.context)

    def free_bytes(self) -> int:
        """Return the free device memory in bytes."""
        self.use()
        return int(call("cuMemGetInfo")[0])

    def allocate(self, size: int) -> int:
        """Allocate device memory and return its address."""
        self.use()
        return int(call("cuMemAlloc", size))

    def allocate_pinned(self, size: int) -> np.ndarray:
        """Allocate pinned host memory as uint64 on this GPU's NUMA node, accessible to all GPUs."""
        with _numa.thread_on(self.numa_node), contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # without the policy, the kernel still prefers the thread's node
                stack.enter_context(_numa.memory_on(self.numa_node))
            self.use()
            flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
            address = int(call("cuMemHostAlloc", size, flags))
        return np.frombuffer((ctypes.c_char * size).from_address(address), dtype=np.uint64)

    def events(self, first: int, count: int) -> list[Any]:
        """Return `count` timing events of this context from number `first` on, created on first use."""
        self.use()
        while len(self._events) < first + count:
            self._events.append(call("cuEventCreate", int(driver.CUevent_flags.CU_EVENT_DEFAULT)))
        return self._events[first : first + count]

    def launch(
        self, kernel: str, stream: Any, *arguments: ctypes._SimpleCData, grid: int = _BLOCKS, block: int = _THREADS
    ) -> None:
        """Queue a kernel of `grid` blocks of `block` threads, with ctypes values as its arguments."""
        if self.kernels_missing:
            raise ProbeError(self.kernels_missing)
        self.use()
        # The driver copies the arguments before it returns, so the arguments need not outlive the call.
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        function = self.kernels[kernel]
        call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, ctypes.addressof(pointers), 0)

    def wait(self) -> None:
        """Wait until all work queued on this GPU is complete."""
        self.use()
        call("cuCtxSynchronize")

    def fill_pattern(self, address: int, size: int, seed: int) -> None:
        """Write the test pattern into device memory, and wait until it is complete."""
        self.launch("fill_pattern", self.stream, _LONG(address), _LONG(size // 8), _LONG(seed))
        self.wait()

    def poison(self, address: int, size: int) -> None:
        """Overwrite device memory with 0xA5, and wait until this is complete."""
        self.use()
        call("cuMemsetD8Async", address, 0xA5, size, self.stream)
        self.wait()

    def count_wrong(self, address: int, size: int, seed: int) -> int:
        """Count the 8-byte words of device memory that differ from the test pattern."""
        return self._count("count_wrong_words", _LONG(address), _LONG(size // 8), _LONG(seed))

    def fill_summands(self, address: int, count: int, seed: int, rank: int) -> None:
        """Write this rank's summands (integers in fp32) into device memory, and wait until they are complete."""
        self.launch("fill_summands", self.stream, _LONG(address), _LONG(count), _LONG(seed), _INT(rank))
        self.wait()

    def count_wrong_sums(self, address: int, count: int, seed: int, ranks: int) -> int:
        """Count the fp32 values of device memory that differ from the expected sum of the summands of all ranks."""
        return self._count("count_wrong_sums", _LONG(address), _LONG(count), _LONG(seed), _INT(ranks))

    def chase(self, table: int, loads: int, stream: Any) -> None:
        """Queue a kernel that does `loads` dependent loads through the table of positions at address `table`."""
        arguments = (_LONG(table), _LONG(0), _INT(loads), _LONG(self._counter))
        self.launch("chase_pointers", stream, *arguments, grid=1, block=1)

    def _count(self, kernel: str, *arguments: ctypes._SimpleCData) -> int:
        """Run a kernel that counts in `_counter`, and return the count."""
        self.use()
        call("cuMemsetD8Async", self._counter, 0, 8, self.stream)
        self.launch(kernel, self.stream, *arguments, _LONG(self._counter))
        self.wait()
        result = np.zeros(1, dtype=np.uint64)
        call("cuMemcpyDtoH", result.ctypes.data, self._counter, 8)
        return int(result[0])

    def _attribute(self, name: str) -> int | None:
        try:
            return int(call("cuDeviceGetAttribute", getattr(driver.CUdevice_attribute, name), self.handle))
        except CudaError:
            return None


def _text(value: bytes) -> str:
    return value.split(b"\0")[0].decode(errors="replace")


def open_gpus(probe: Probe) -> list[Gpu]:
    """Open every visible GPU, and create the contexts in parallel. Without a GPU, report the reason and exit."""
    if driver is None:
        probe.unavailable("cuda-bindings is not installed (pip install cuda-bindings)")
    try:
        with probe.phase("driver"):
            call("cuInit", 0)
        count = int(call("cuDeviceGetCount"))
        version = int(call("cuDriverGetVersion"))
    except (CudaError, RuntimeError) as error:  # RuntimeError: cuda-bindings finds no driver library
        reason = str(error)
        if "NO_DEVICE" in reason:
            reason = "CUDA sees no GPU (CUDA_VISIBLE_DEVICES may hide them)"
        probe.unavailable(reason)
    import cuda.bindings  # noqa: PLC0415 # installed, as checked before

    probe.versions.update(
        {"cuda_driver": f"{version // 1000}.{version % 1000 // 10}", "cuda-bindings": cuda.bindings.__version__}
    )
    if count == 0:
        probe.unavailable("CUDA sees no GPU (CUDA_VISIBLE_DEVICES may hide them)")

    gpus: list[Gpu] = []
    with probe.phase("contexts and kernels"), ThreadPoolExecutor(count) as pool:
        for ordinal, future in enumerate([pool.submit(Gpu, i) for i in range(count)]):
            with probe.attempt(f"GPU {ordinal}"):
                gpus.append(future.result())
    # If the phase `contexts and kernels` takes much longer than the slowest GPU, the driver works sequentially.
    probe.phases["slowest context"] = max((gpu.context_s for gpu in gpus), default=0.0)
    probe.phases["slowest kernels"] = max((gpu.kernels_s for gpu in gpus), default=0.0)
    if not gpus:
        probe.finish(gpus=[])
    for gpu in gpus:
        if gpu.kernels_missing:
            probe.skip(f"verification on CUDA device {gpu.ordinal}", gpu.kernels_missing)
            break  # one reason is enough, because all GPUs have the same driver
    return gpus


def buffer_bytes(gpus: Sequence[Gpu], wanted: int, share: float) -> int:
    """Return a buffer's size in bytes, in whole MiB: the least of `wanted` and `share` of each GPU's free memory.

    Raises:
        ProbeError: not even 16 MiB are free.
    """
    size = min(wanted, *(int(gpu.free_bytes() * share) for gpu in gpus)) // MIB * MIB
    if size < 16 * MIB:
        raise ProbeError("less than 16 MiB of device memory per buffer is free; another process uses the rest")
    return size
