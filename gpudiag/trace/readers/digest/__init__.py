"""Read and write digests: the events of one rank as gpudiag read them from a trace, in few bytes."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.event import Trace
from gpudiag.model.run_directory import DIGEST_ENDING
from gpudiag.trace.unpack import ReadLimits

__all__ = ["ENDINGS", "memory_bytes", "read", "recognises"]

ENDINGS = (DIGEST_ENDING,)
#: Bytes in memory per byte on disk. An event was measured to take 50 bytes in memory, 3 to 5 on disk.
_MEMORY_PER_BYTE = 20


def recognises(path: Path) -> bool:
    """Return whether a file's name has the ending of digests."""
    return path.name.lower().endswith(ENDINGS)


def memory_bytes(path: Path, size: int) -> int:  # noqa: ARG001  # the protocol's signature
    """Estimate the memory that reading a file takes, from its size on disk."""
    return size * _MEMORY_PER_BYTE


def read(path: Path, shown: str, limits: ReadLimits) -> tuple[Trace, ...]:
    """Return the traces in a digest. Raise the errors of `Reader.read`."""
    from gpudiag.trace.readers.digest.decode import read_digest

    return read_digest(path, shown, limits)
