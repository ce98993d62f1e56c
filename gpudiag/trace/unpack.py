"""From a path to the bytes of its JSON, unpacked, within bounds of size."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.trace.limits import MEMORY_PER_JSON_BYTE, ReadLimits, free_memory_bytes
from gpudiag.trace.other_formats import other_format

_deflate: Any
try:  # unpacks two to three times faster; has wheels for x86-64 and arm64 only
    from isal import isal_zlib as _deflate
except ImportError:
    _deflate = zlib

_GZIP = b"\x1f\x8b"
_OTHER_PACKINGS = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_GZIP_WINDOW = 31  # zlib's code for "a gzip header and trailer, checked"
#: What is read, and what is unpacked, at once. Larger pieces fall out of the caches, smaller ones cost more calls.
_PACKED_PIECE = 64 << 10
_PIECE = 512 << 10
_KILLED = "The file was probably cut short: give the profiler time to finish writing, then copy the file whole."


def read_pieces(path: Path, shown: str, limits: ReadLimits, *, binary: bool = False) -> Generator[bytes]:
    """The JSON text in a file, unpacked where it is gzip, a piece at a time.

    Args:
        path: the file.
        shown: how to call it in messages.
        limits: bounds on what it may unpack to.
        binary: it need not be JSON.

    Raises:
        UnreadableInputError: missing, no permission, no regular file, empty, or a broken gzip stream.
        NotATraceError: neither gzip nor JSON.
        TooLargeError: it unpacks to more than the limits allow.
    """
    with _opened(path, shown) as (file, size):
        head = file.read(_PACKED_PIECE)
        bound = _Bound(shown, limits)
        if head.startswith(_GZIP):
            yield from _unpacked(file, head, size, bound)
        else:
            _check_plain(head, shown, binary=binary)
            bound.check(size, size)
            yield head
            left = size - len(head)  # a file that grows while it is read is taken at the size it had
            while left > 0 and (piece := file.read(min(_PIECE, left))):
                left -= len(piece)
                yield piece


def read_whole(path: Path, shown: str, limits: ReadLimits, *, binary: bool = False) -> bytearray:
    """The JSON text in a file, or whatever it is if `binary`, whole; raises as `read_pieces` does."""
    text = bytearray()
    for piece in read_pieces(path, shown, limits, binary=binary):
        text += piece
    return text


def read_head(path: Path, shown: str, limits: ReadLimits) -> bytes:
    """The first piece of that text: enough to see what it is. Raises as `read_pieces` does."""
    pieces = read_pieces(path, shown, limits)
    try:
        return next(pieces, b"")
    finally:
        pieces.close()


@contextmanager
def _opened(path: Path, shown: str) -> Iterator[tuple[FileIO, int]]:
    """A regular file that is not empty, opened, and its size; whatever goes wrong with it becomes our own error."""
    try:
        # Non-blocking, so that a pipe put in a trace's place cannot hang us before it is seen for what it is.
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


class _Bound:
    """How many bytes may come out of one file, and the error when more do."""

    def __init__(self, shown: str, limits: ReadLimits) -> None:
        self.shown = shown
        self._limits = limits
        free = free_memory_bytes()
        self._by_memory = free is not None and free // MEMORY_PER_JSON_BYTE < limits.max_bytes
        self._most = free // MEMORY_PER_JSON_BYTE if self._by_memory and free is not None else limits.max_bytes

    def check(self, unpacked: int, packed: int) -> None:
        """Raise TooLargeError if `unpacked` bytes, out of `packed`, are more than any trace should have."""
        if unpacked > self._most:
            allowed = "the free memory of this machine allows" if self._by_memory else "is allowed for one trace"
            raise TooLargeError(
                f"{self.shown} unpacks to more than the {self._most / 1e9:.3g} GB that {allowed}",
                "Close other programs or use a larger machine; else record fewer steps." if self._by_memory else None,
            )
        if unpacked > self._limits.ratio_free_bytes and unpacked > packed * self._limits.max_ratio:
            raise TooLargeError(
                f"{self.shown} unpacks to more than {self._limits.max_ratio} times its size; no profiler's trace does",
                "Do not trust this file. If it is a trace, unpack it yourself and give the .json.",
            )


def _check_plain(head: bytes, shown: str, *, binary: bool) -> None:
    """Raise where the file is packed in another way or, unless it is `binary`, does not begin as JSON does."""
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
    """Return the error for a file that does not begin as JSON does, with the name of its format where that is known."""
    other = other_format(head, shown)
    if other is None:
        return NotATraceError(f"{shown} is not JSON")
    return NotATraceError(f"{shown} is not JSON but {other.name}, which gpudiag does not read", other.hint)


def begins_as_json(head: bytes | bytearray) -> bool:
    """Return whether text begins as a JSON object or list does."""
    return bytes(head[:4096]).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in {b"{", b"["}


def _unpacked(file: FileIO, head: bytes, size: int, bound: _Bound) -> Iterator[bytes]:
    """Unpack gzip members one after another, and stop at the first bound that is crossed."""
    stream = _deflate.decompressobj(_GZIP_WINDOW)
    waiting, packed, unpacked = head, len(head), 0
    try:
        while waiting:
            piece = stream.decompress(waiting, _PIECE)
            unpacked += len(piece)
            bound.check(unpacked, packed)
            if piece:
                yield piece
            if not stream.eof:
                # The checksum behind the data is taken last, so input runs out here only where the file is cut.
                waiting = stream.unconsumed_tail
                if not waiting:
                    waiting = file.read(_PACKED_PIECE)
                    packed += len(waiting)
                continue
            waiting = stream.unused_data.lstrip(b"\0")  # gzip allows zero padding after a member
            while len(waiting) < len(_GZIP) and (more := file.read(_PACKED_PIECE)):
                packed += len(more)
                waiting = (waiting + more).lstrip(b"\0")
            if waiting:
                if not waiting.startswith(_GZIP):
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
