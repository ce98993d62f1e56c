"""Read and unpack the bytes of a file within limits that protect the machine from untrusted files."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError

_deflate: Any
try:  # unpacks two to three times faster; has wheels for x86-64 and arm64 only
    from isal import isal_zlib as _deflate
except ImportError:
    _deflate = zlib

#: Bytes of memory per unpacked byte of a trace, for text and decoded events (measured with PyTorch 2.11: 2.6).
_MEMORY_PER_BYTE = 4
#: Ratio of unpacked to packed bytes of ordinary traces in gzip format.
_USUAL_RATIO = 16
_GZIP = b"\x1f\x8b"
_OTHER_PACKINGS = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_GZIP_WINDOW = 31  # zlib's code for "a gzip header and trailer, checked"
#: Maximum bytes of a piece, packed and unpacked. Larger pieces exceed the caches, and smaller pieces need more calls.
_PACKED_PIECE = 64 << 10
_PIECE = 512 << 10
_KILLED = "The file was probably cut short: give the profiler time to finish writing, then copy the file whole."


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on reading traces.

    Attributes:
        max_bytes: maximum unpacked size of one trace. Free memory limits the size too.
        max_ratio: maximum ratio of unpacked to packed bytes. Real traces have 10 to 40, a decompression bomb has 1000.
        ratio_free_bytes: unpacked size up to which the ratio is not checked.
        workers: maximum number of processes that read files; None for the number of usable CPUs.
    """

    max_bytes: int = 4_000_000_000
    max_ratio: int = 200
    ratio_free_bytes: int = 64 << 20
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_ratio < 1 or self.ratio_free_bytes < 0:
            raise ValueError(f"limits must be positive: {self}")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"at least one process must read, not {self.workers}")


def estimated_memory_bytes(path: Path, size: int) -> int:
    """Estimate the memory that reading a file takes, from its size on disk."""
    return size * (_USUAL_RATIO if path.suffix == ".gz" else 1) * _MEMORY_PER_BYTE


def free_memory_bytes() -> int | None:
    """Return the bytes available without swapping, by the kernel's estimate or by the cgroup's limit if that is less.

    Return None if the system reports neither value (not Linux).
    """
    known = [value for value in (_available_memory_bytes(), _cgroup_rest_bytes()) if value is not None]
    return min(known, default=None)


def _available_memory_bytes() -> int | None:
    """Return the kernel's estimate of the memory available without swapping; None if it states none."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_rest_bytes() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def read_pieces(path: Path, shown: str, limits: ReadLimits, *, binary: bool = False) -> Generator[bytes]:
    """Yield the content of a file piece by piece, unpacked if it is gzip.

    Args:
        path: the file.
        shown: name of the file in messages.
        limits: limits on the unpacked size.
        binary: accept content that is not JSON.

    Raises:
        UnreadableInputError: the file is missing, unreadable, not regular, empty, or a broken gzip stream.
        NotATraceError: the file is neither gzip nor JSON.
        TooLargeError: the file unpacks to more than the limits allow.
    """
    with opened_file(path, shown) as (file, size):
        head = file.read(_PACKED_PIECE)
        bound = SizeBound(shown, limits)
        if head.startswith(_GZIP):
            yield from _unpacked(file, head, size, bound)
        else:
            _check_unpacked(head, shown, binary=binary)
            bound.check(size, size)
            yield head
            left = size - len(head)  # if the file grows, only its size at opening is read
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece


def read_whole(path: Path, shown: str, limits: ReadLimits, *, binary: bool = False) -> bytearray:
    """Return the whole content of a file. Take the arguments of `read_pieces`, and raise the same errors."""
    text = bytearray()
    for piece in read_pieces(path, shown, limits, binary=binary):
        text += piece
    return text


def read_head(path: Path, shown: str, limits: ReadLimits) -> bytes:
    """Return the first piece of the content, enough to recognise the format. Raise the same errors as `read_pieces`."""
    pieces = read_pieces(path, shown, limits)
    try:
        return next(pieces, b"")
    finally:
        pieces.close()


@contextmanager
def opened_file(path: Path, shown: str) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file that is not empty, yield (file, size in bytes), and convert operating system errors."""
    try:
        # Opening is non-blocking, so that a pipe cannot hang this process before its type is checked.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise UnreadableInputError(f"{shown}: {error.strerror}", "Check the path and its permissions.") from error
    with FileIO(descriptor) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableInputError(f"{shown} is not a regular file", "Give the trace as a file on disk.")
        if status.st_size == 0:
            raise UnreadableInputError(f"{shown} is empty", _KILLED)
        try:
            yield file, status.st_size
        except OSError as error:
            raise UnreadableInputError(f"{shown}: {error.strerror}", "Check the disk it is on.") from error


class SizeBound:
    """Limit the unpacked bytes of one file."""

    def __init__(self, shown: str, limits: ReadLimits) -> None:
        self.shown = shown
        self._limits = limits
        free = free_memory_bytes()
        by_memory = limits.max_bytes if free is None else free // _MEMORY_PER_BYTE
        self._by_memory = by_memory < limits.max_bytes
        self._max_bytes = min(by_memory, limits.max_bytes)

    def check(self, unpacked: int, packed: int) -> None:
        """Raise TooLargeError if unpacking `packed` bytes to `unpacked` bytes exceeds the limits."""
        if unpacked > self._max_bytes:
            allowed = "the free memory of this machine allows" if self._by_memory else "is allowed for one trace"
            hint = "Close other programs or use a larger machine; else record fewer steps."
            raise TooLargeError(
                f"{self.shown} unpacks to more than the {self._max_bytes / 1e9:.3g} GB that {allowed}",
                hint if self._by_memory else None,
            )
        if unpacked > self._limits.ratio_free_bytes and unpacked > packed * self._limits.max_ratio:
            raise TooLargeError(
                f"{self.shown} unpacks to more than {self._limits.max_ratio} times its size; no profiler's trace does",
                "Do not trust this file. If it is a trace, unpack it yourself and give the .json.",
            )


def _check_unpacked(head: bytes, shown: str, *, binary: bool) -> None:
    """Check the first bytes, `head`, of a file that is not gzip.

    Raises:
        UnreadableInputError: the file is packed in another format, or is named .gz; JSON named .gz is accepted unless
            `binary`.
        NotATraceError: the file does not begin as JSON does, and `binary` is False.
    """
    for magic, packing in _OTHER_PACKINGS.items():
        if head.startswith(magic):
            raise UnreadableInputError(f"{shown} is packed with {packing}", "Unpack it, or pack it with gzip.")
    if begins_as_json(head) and not binary:
        return
    if shown.endswith(".gz"):
        raise UnreadableInputError(f"{shown} is named .gz but is not gzip", "Copy the file again, in binary mode.")
    if not binary:
        raise not_json(head, shown)


def not_json(head: bytes, shown: str) -> NotATraceError:
    """Return the error for a file that does not begin as JSON; its message names the format if it is known."""
    from gpudiag.trace.other_formats import other_format

    other = other_format(head, shown)
    if other is None:
        return NotATraceError(f"{shown} is not JSON")
    return NotATraceError(f"{shown} is not JSON but {other.name}, which gpudiag does not read", other.hint)


def begins_as_json(head: bytes | bytearray) -> bool:
    """Return whether text begins as a JSON object or list does."""
    return bytes(head[:4096]).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}


def _unpacked(file: FileIO, head: bytes, size: int, bound: SizeBound) -> Iterator[bytes]:
    """Unpack gzip members one after another; raise TooLargeError when a limit is exceeded.

    `head` has the bytes already read from `file`, whose size is `size` bytes; `bound` has the limits.
    """
    stream = _deflate.decompressobj(_GZIP_WINDOW)
    pending, packed, unpacked = head, len(head), 0
    try:
        while pending:
            piece = stream.decompress(pending, _PIECE)
            unpacked += len(piece)
            bound.check(unpacked, packed)
            if piece:
                yield piece
            if not stream.eof:
                # The checksum comes last, so the input ends before `eof` only if the file is truncated.
                pending = stream.unconsumed_tail
                if not pending:
                    pending = file.read(_PACKED_PIECE)
                    packed += len(pending)
                continue
            pending = stream.unused_data.lstrip(b"\0")  # gzip allows zero padding after a member
            while len(pending) < len(_GZIP) and (more := file.read(_PACKED_PIECE)):
                packed += len(more)
                pending = (pending + more).lstrip(b"\0")
            if pending:
                if not pending.startswith(_GZIP):
                    raise UnreadableInputError(
                        f"{bound.shown} has other bytes after its gzip data", "Copy the file again, in binary mode."
                    )
                stream = _deflate.decompressobj(_GZIP_WINDOW)
    except (zlib.error, _deflate.error) as error:
        raise UnreadableInputError(f"{bound.shown} is a damaged gzip file ({error})", _KILLED) from error
    if not stream.eof:
        raise UnreadableInputError(
            f"{bound.shown} is a gzip file cut short: it ends after {size} bytes, {unpacked} unpacked", _KILLED
        )
