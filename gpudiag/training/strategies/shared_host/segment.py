"""Share memory between the processes of one node, and pin it for their GPUs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag.errors import HardwareMissingError, UsageError

if TYPE_CHECKING:
    import torch

_NAME = "gpudiag-exchange"
_MEMORY_HINT = "Free memory, raise the limit on it (docker --memory, ulimit -f), or use nccl."
_PINNING_HINT = "Raise the limit on locked memory (ulimit -l, docker --ulimit memlock=-1), or use another strategy."


class Segment:
    """An anonymous file in memory (`memfd_create`) that every rank maps.

    Rank 0 creates the file, which has no name in any directory. Other ranks open the file through `/proc/<pid>/fd`.
    Other users cannot open the file. The kernel frees the file when the last process has closed it or died. The size of
    `/dev/shm`, which is small in containers, does not limit the size of the file.

    Args:
        size: size of the memory in bytes.
        rank: the rank of this process.
        gather: function that returns the list of all ranks' arguments. All ranks call it at the same point.

    Raises:
        UsageError: the processes are not on one node or cannot see each other. Every rank raises this error.
        HardwareMissingError: there is not enough memory. Every rank raises this error.
    """

    def __init__(self, size: int, rank: int, gather: Callable[[Any], list[Any]]) -> None:
        self.size, self._gather = size, gather
        self._file = -1
        self._problem: str | None = None
        node = _boot_id()
        created = self._create(size) if rank == 0 else None
        announced = gather((node, created))
        if announced[0][1] is None:
            raise HardwareMissingError(f"there is no room for {size / 1e6:.0f} MB of shared memory", _MEMORY_HINT)
        nodes = {other for other, _ in announced}
        if len(nodes) > 1:
            raise UsageError(
                f"cpu-reduce works within one node, and these processes run on {len(nodes)}",
                "Use nccl between nodes, or start the job on one node.",
            )
        if rank != 0:
            self._open(*announced[0][1])
        failed = next((problem for problem in gather(self._problem) if problem), None)
        if failed:
            self.close()
            raise UsageError(failed, "Start all ranks as one user in one container, or let containers share processes.")
        self._map = mmap.mmap(self._file, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # the kernel may not support huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def _create(self, size: int) -> tuple[int, int, int] | None:
        """Create the file; return (process id, file descriptor, inode), or None if the system refuses."""
        try:
            self._file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
            os.ftruncate(self._file, size)
        except OSError:
            self.close()
            return None
        return os.getpid(), self._file, os.fstat(self._file).st_ino

    def _open(self, pid: int, file: int, inode: int) -> None:
        """Open rank 0's file. If that fails, set `_problem`."""
        try:
            self._file = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self._problem = f"this process cannot open the memory that rank 0 shares: {error.strerror}"
            return
        opened = os.fstat(self._file)
        if (opened.st_ino, opened.st_size) != (inode, self.size):
            # The process id belongs to another process here, because rank 0 is in another process namespace.
            self._problem = "this process cannot see rank 0's process: they are in different containers"

    def reserve(self, parts: Iterable[tuple[int, int]]) -> None:
        """Allocate regions, given as (offset, bytes), on this thread's NUMA node. All ranks must call this together.

        Raise HardwareMissingError if there is not enough memory. Every rank raises this error.
        """
        problem = None
        try:
            for offset, count in parts:
                os.posix_fallocate(self._file, offset, count)
        except OSError as error:
            problem = f"there is no room for {self.size / 1e6:.0f} MB of shared memory: {error.strerror}"
        failed = next((reason for reason in self._gather(problem) if reason), None)
        if failed:
            raise HardwareMissingError(failed, _MEMORY_HINT)

    @property
    def address(self) -> int:
        """Address of the mapping in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def memory(self) -> mmap.mmap:
        """The mapping, which is valid as long as any buffer refers to it."""
        return self._map

    def close(self) -> None:
        """Close the file. The mapping remains valid until the last tensor on the mapping is deleted."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename


class Pinned:
    """Pin `size` bytes at `address` (register them with the driver) for all GPUs; do nothing if `device` is a CPU.

    Raises:
        HardwareMissingError: the driver refuses to pin the memory.
    """

    def __init__(self, address: int, size: int, device: torch.device) -> None:
        self._device = device
        self._address: int | None = None
        #: Address of the memory on the device.
        self.on_device = address
        if device.type != "cuda":
            return
        import torch
        from cuda.bindings import driver

        self._driver = driver
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # creates the driver's context if there is none
            flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
            what = f"pin {size / 1e6:.0f} MB of shared memory"
            checked(driver, driver.cuMemHostRegister(address, size, flags), what, device, _PINNING_HINT)
            self._address = address
            mapped = driver.cuMemHostGetDevicePointer(address, 0)
            (pointer,) = checked(driver, mapped, f"map {what[4:]}", device, _PINNING_HINT)  # without "pin "
            self.on_device = int(pointer)

    def close(self) -> None:
        """Unpin the memory. No copy may use the memory afterwards. Further calls do nothing."""
        if self._address is not None:
            import torch

            with torch.cuda.device(self._device):
                self._driver.cuMemHostUnregister(self._address)
            self._address = None


def checked(
    driver: Any, answer: tuple[Any, ...], what: str, device: torch.device, hint: str | None = None
) -> tuple[Any, ...]:
    """Return the results of a driver function without the status, which is the first element of `answer`.

    Raises:
        HardwareMissingError: the status is an error. `what` describes in words what the function should have done, and
            `hint` is the error's hint for the user.
    """
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(answer[0])
        text = name.decode() if isinstance(name, bytes) else str(answer[0])
        raise HardwareMissingError(f"{device} cannot {what} ({text})", hint)
    return answer[1:]
