"""Memory shared by the processes of one node, which leaves nothing behind however they end."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpudiag.errors import HardwareMissingError, UsageError

_NAME = "gpudiag-exchange"
_MORE = "Free memory, raise the limit on it (docker --memory, ulimit -f), or use nccl."


class Segment:
    """One anonymous file in memory (`memfd_create`), mapped by every rank.

    It has no name in any directory: rank 0 makes it, the others open it through `/proc/<pid>/fd`, and the kernel frees
    it when the last of them has closed it or died. It is private to the user, since no one else may open that path, and
    not bounded by the size of `/dev/shm`, which containers keep small.

    Args:
        size: bytes.
        rank: this process's.
        gather: puts an object of every rank into a list by rank; all ranks call it at the same point.

    Raises:
        UsageError: the processes are not on one node, or cannot see each other. Raised on every rank.
        HardwareMissingError: there is not enough memory. Raised on every rank.
    """

    def __init__(self, size: int, rank: int, gather: Callable[[Any], list[Any]]) -> None:
        self.size = size
        self._gather = gather
        self._file = -1
        self._problem: str | None = None
        node = _boot_id()
        mine = self._create(size) if rank == 0 else None
        announced = gather((node, mine))
        if announced[0][1] is None:
            raise HardwareMissingError(f"there is no room for {size / 1e6:.0f} MB of shared memory", _MORE)
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
            with contextlib.suppress(OSError):  # a kernel without them
                self._map.madvise(mmap.MADV_HUGEPAGE)

    def _create(self, size: int) -> tuple[int, int, int] | None:
        """Process, file and inode; None where the system refuses, which the other ranks must hear."""
        try:
            self._file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
            os.ftruncate(self._file, size)
        except OSError:
            self.close()
            return None
        return os.getpid(), self._file, os.fstat(self._file).st_ino

    def _open(self, pid: int, file: int, inode: int) -> None:
        try:
            self._file = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            self._problem = f"this process cannot open the memory that rank 0 shares: {error.strerror}"
            return
        found = os.fstat(self._file)
        if (found.st_ino, found.st_size) != (inode, self.size):
            # Another process namespace: the same number is someone else's process there.
            self._problem = "this process cannot see rank 0's process: they are in different containers"

    def reserve(self, parts: Iterable[tuple[int, int]]) -> None:
        """Have the kernel give memory to these parts, (offset, bytes) each, near the processor of this thread.

        All ranks call it, each with its own parts.

        Raises:
            HardwareMissingError: on every rank, if any of them gets none.
        """
        problem = None
        try:
            for offset, count in parts:
                os.posix_fallocate(self._file, offset, count)
        except OSError as error:
            problem = f"there is no room for {self.size / 1e6:.0f} MB of shared memory: {error.strerror}"
        failed = next((told for told in self._gather(problem) if told), None)
        if failed:
            raise HardwareMissingError(failed, _MORE)

    @property
    def address(self) -> int:
        """Where the memory is mapped in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def memory(self) -> mmap.mmap:
        """The mapping, as a buffer. It lives for as long as anything is made of it."""
        return self._map

    def close(self) -> None:
        """Let go of the file. The mapping ends with the last tensor made of it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return os.uname().nodename
