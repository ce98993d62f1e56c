"""Use NCCL through its C interface: one process drives all GPUs, as nccl-tests does by default.

Without a framework, communicators are ready within a second after the CUDA contexts.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _cuda import call
from _flows import GateGaveUpError
from _protocol import ProbeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _cuda import Gpu
    from _flows import Gate

_FLOAT32, _SUM = 7, 0  # ncclFloat32, ncclSum in nccl.h
FLOAT_BYTES = 4


class NcclError(ProbeError):
    """An NCCL call failed; the message names the call and NCCL's reason."""


def find_library() -> Path | str:
    """Return the path of libnccl.so.2 in the nvidia-nccl wheel, which PyTorch also loads; else the file name."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for directory in (spec.submodule_search_locations if spec else None) or ():
            library = Path(directory) / "lib" / "libnccl.so.2"
            if library.is_file():
                return library
    for directory in sys.path:
        library = Path(directory) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if library.is_file():
            return library
    return "libnccl.so.2"


class Nccl:
    """NCCL's library.

    Raises:
        OSError: the library is missing, or cannot be loaded.
    """

    def __init__(self) -> None:
        # NVLink multicast (NVLS) is off unless the user has set the variable. Multicast can exceed a link's rate, so
        # its bandwidth has no ceiling. If the fabric's state is bad, multicast fails for every user of the machine.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        path = str(find_library())
        self._library = ctypes.CDLL(path)
        # The timed calls only queue work. These calls keep the interpreter's lock (PyDLL), because releasing the lock
        # takes time.
        queueing = ctypes.PyDLL(path)
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._library.ncclCommInitAll.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self._library.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        for name in ("ncclAllReduce", "ncclGroupStart", "ncclGroupEnd"):
            getattr(queueing, name).restype = ctypes.c_int
        self.group_start = queueing.ncclGroupStart
        self.group_end = queueing.ncclGroupEnd
        self.all_reduce = queueing.ncclAllReduce

    def version(self) -> str:
        """Return the version, for example 2.27.7."""
        number = ctypes.c_int()
        self.check("ncclGetVersion", self._library.ncclGetVersion(ctypes.byref(number)))
        value = number.value
        return f"{value // 10000}.{value // 100 % 100}.{value % 100}"

    def check(self, name: str, status: int) -> None:
        """Raise NcclError unless `status` is ncclSuccess."""
        if status:
            reason = self._library.ncclGetErrorString(status).decode(errors="replace")
            raise NcclError(f"{name}: {reason} (NCCL_DEBUG=WARN says more)")

    def communicators(self, gpus: Sequence[Gpu], algorithm: str | None) -> list[ctypes.c_void_p]:
        """Create one communicator per GPU, with ranks 0, 1, …; `algorithm` is Ring, Tree or None for NCCL's choice."""
        with _environment("NCCL_ALGO", algorithm):
            pointers = (ctypes.c_void_p * len(gpus))()
            devices = (ctypes.c_int * len(gpus))(*(gpu.ordinal for gpu in gpus))
            self.check("ncclCommInitAll", self._library.ncclCommInitAll(pointers, len(gpus), devices))
        return [ctypes.c_void_p(pointer) for pointer in pointers]


class AllReduce:
    """Queue all-reduces of `count` fp32 values over all GPUs from one thread, as nccl-tests does.

    `buffers` has the source and the target address on each GPU. All arguments are prepared in advance, so that an
    all-reduce over 4 GPUs takes under 2 µs of Python. NCCL takes 15 to 20 µs to launch its kernels.
    """

    def __init__(
        self,
        nccl: Nccl,
        gpus: Sequence[Gpu],
        communicators: Sequence[ctypes.c_void_p],
        buffers: Sequence[tuple[int, int]],
        count: int,
    ) -> None:
        self._nccl = nccl
        self._gpus = gpus
        number, kind, operation = ctypes.c_size_t(count), ctypes.c_int(_FLOAT32), ctypes.c_int(_SUM)
        self._calls = [
            (
                ctypes.c_void_p(source),
                ctypes.c_void_p(target),
                number,
                kind,
                operation,
                communicator,
                ctypes.c_void_p(int(gpu.stream)),
            )
            for gpu, communicator, (source, target) in zip(gpus, communicators, buffers, strict=True)
        ]

    def queue(self, times: int) -> None:
        """Queue this number of all-reduces on all GPUs. Raises NcclError."""
        start, end, all_reduce, calls = self._nccl.group_start, self._nccl.group_end, self._nccl.all_reduce, self._calls
        status = 0
        for _ in range(times):
            start()
            for arguments in calls:
                status |= all_reduce(*arguments)
            status |= end()
        if status:
            self._nccl.check("ncclAllReduce", status)

    def wait(self) -> None:
        """Wait until the work on all GPUs is complete."""
        for gpu in self._gpus:
            call("cuStreamSynchronize", gpu.stream)

    def launched_s(self, times: int) -> float:
        """Launch `times` all-reduces one after another, and return the seconds per all-reduce by the host's clock."""
        began = time.perf_counter()
        self.queue(times)
        self.wait()
        return (time.perf_counter() - began) / times

    def queued_s(self, gate: Gate, times: int) -> float:
        """Queue `times` all-reduces behind the gate, and return the seconds per all-reduce by the slowest GPU's clock.

        All launches end before the first all-reduce starts, so that only device time is measured.

        Raises:
            GateGaveUpError: NCCL blocked the host during the launches.
        """
        gate.close()
        marks = [gpu.events(0, 2) for gpu in self._gpus]
        try:
            for gpu, (start, _) in zip(self._gpus, marks, strict=True):
                gpu.use()
                gate.hold(gpu, gpu.stream)
                call("cuEventRecord", start, gpu.stream)
            self.queue(times)
            for gpu, (_, end) in zip(self._gpus, marks, strict=True):
                gpu.use()
                call("cuEventRecord", end, gpu.stream)
        finally:
            gate.open()
        longest_ms = 0.0
        for gpu, (start, end) in zip(self._gpus, marks, strict=True):
            gpu.use()
            call("cuEventSynchronize", end)
            longest_ms = max(longest_ms, call("cuEventElapsedTime", start, end))
        if gate.gave_up():
            raise GateGaveUpError("NCCL blocks the host while all-reduces are queued")
        return longest_ms / 1e3 / times


@contextlib.contextmanager
def fastest_cpu(step: AllReduce, candidates: int = 8) -> Iterator[None]:
    """Within the block, run this thread on the CPU that launches fastest. Try up to `candidates` of the usable CPUs.

    Launching from a core of the other socket, or beside a busy hyper-thread, takes 50 % longer. A thread that moves
    between such cores gives alternating results. In a VM the sockets of cores are unknown. Therefore a few all-reduces
    are launched from each candidate.
    """
    before = os.sched_getaffinity(0)
    usable = sorted(before)
    cpus = sorted({usable[i * len(usable) // candidates] for i in range(candidates)})
    if len(cpus) < 2:
        yield
        return
    try:
        seconds = {}
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            step.launched_s(5)
            seconds[cpu] = min(step.launched_s(10) for _ in range(3))
        os.sched_setaffinity(0, {min(seconds, key=lambda cpu: seconds[cpu])})
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable within the block, also for C libraries. If `value` is None, do nothing."""
    before: Any = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
