"""NCCL through its C interface: one process, all GPUs, as nccl-tests drives it by default.

No framework, so a communicator is up within a second of CUDA being there.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _cuda import call
from _protocol import ProbeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _cuda import Gpu

_FLOAT32, _SUM = 7, 0  # ncclFloat32, ncclSum in nccl.h
FLOAT_BYTES = 4


class NcclError(ProbeError):
    """An NCCL call failed; the message names the call and NCCL's reason."""


def find_library() -> Path | str:
    """libnccl.so.2 of the nvidia-nccl wheel that PyTorch also loads, else the loader's own."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("nvidia.nccl")
        for place in (spec.submodule_search_locations if spec else None) or ():
            library = Path(place) / "lib" / "libnccl.so.2"
            if library.is_file():
                return library
    for place in sys.path:
        library = Path(place) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if library.is_file():
            return library
    return "libnccl.so.2"


class Nccl:
    """The library.

    Raises:
        OSError: it is not there, or the loader refuses it.
    """

    def __init__(self) -> None:
        # NVLink multicast (NVLS) is left out unless the user asked for it: it can exceed what a link carries, so its
        # figures compare with no ceiling, and where a fabric's state is bad it fails for every user of the machine.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        self._library = ctypes.CDLL(str(find_library()))
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        self._library.ncclCommInitAll.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self._library.ncclCommDestroy.argtypes = [ctypes.c_void_p]
        for name in ("ncclAllReduce", "ncclGroupStart", "ncclGroupEnd"):
            getattr(self._library, name).restype = ctypes.c_int
        self.group_start = self._library.ncclGroupStart
        self.group_end = self._library.ncclGroupEnd
        self.all_reduce = self._library.ncclAllReduce

    def version(self) -> str:
        """For example 2.27.7."""
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
        """One communicator per GPU, in ranks 0, 1, …; `algorithm` (Ring, Tree) is forced on them if given."""
        with _environment("NCCL_ALGO", algorithm):
            made = (ctypes.c_void_p * len(gpus))()
            devices = (ctypes.c_int * len(gpus))(*(gpu.ordinal for gpu in gpus))
            self.check("ncclCommInitAll", self._library.ncclCommInitAll(made, len(gpus), devices))
        return [ctypes.c_void_p(pointer) for pointer in made]


class AllReduce:
    """Sums of `count` fp32 values over all GPUs, queued by one thread for all of them, as nccl-tests does.

    Everything that a call needs is made beforehand: a step of 4 GPUs takes a few microseconds of Python, beside the 15
    to 20 that NCCL itself takes to launch its kernels.
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
        """Queue so many all-reduces. Raises NcclError."""
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
        """Wait until all GPUs are done."""
        for gpu in self._gpus:
            call("cuStreamSynchronize", gpu.stream)


@contextlib.contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable, also for C libraries, and put it back."""
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
