"""From a path to the bytes of its JSON, unpacked, within bounds of size."""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import contextmanager
from io import FileIO
from typing import TYPE_CHECKING

from gpudiag.errors import NotATraceError, TooLargeError, UnreadableInputError
from gpudiag.readers.limits import MEMORY_PER_JSON_BYTE, free_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpudiag.readers.limits import ReadLimits

try:  # unpacks two to three times faster; has wheels for x86-64 and arm64 only
    from isal import isal_zlib as _deflate
except ImportError:  # pragma: no cover - depends on the platform
    _deflate = zlib

_GZIP = b"\x1f\x8b"
_OTHER_PACKINGS = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_GZIP_WINDOW = 31  # zlib's code for "a gzip header and trailer, checked"
_PIECE = 256 << 10
_STEP = 4 << 20
_HEAD = 64 << 10
_KILLED = "The file was probably cut short: give the profiler time to finish writing, then copy the file whole."


def read_json_bytes(path: Path, shown: str, limits: ReadLimits) -> bytes | bytearray:
    """The JSON text in a file, unpacked where it is gzip.

    Args:
        path: the file.
        shown: how to call it in messages.
        limits: bounds on what it may unpack to.

    Raises:
        UnreadableInputError: missing, no permission, no regular file, empty, or a broken gzip stream.
        NotATraceError: neither gzip nor JSON.
        TooLargeError: it unpacks to more than the limits allow.
    """
    with _opened(path, shown) as (file, size):
        return _read(file, size, shown, limits)


def read_json_head(path: Path, shown: str, limits: ReadLimits) -> bytes:
    """The first bytes of a file, unpacked: enough to see what it is.

    Raises:
        UnreadableInputError: as `read_json_bytes`.
    """
    with _opened(path, shown) as (file, _):
        head = file.read(_HEAD)
    if not head.startswith(_GZIP):
        return head
    try:
        return bytes(_deflate.decompressobj(_GZIP_WINDOW).decompress(head, min(_HEAD, limits.max_bytes)))
    except (zlib.error, _deflate.error) as error:
        raise UnreadableInputError(f"{shown} is a damaged gzip file ({error})", _KILLED) from error


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


def _read(file: FileIO, packed: int, shown: str, limits: ReadLimits) -> bytes | bytearray:
    head = file.read(_PIECE)
    cap, why = _cap(limits)
    if head.startswith(_GZIP):
        return _inflate(file, head, packed, shown, limits, cap, why)
    for magic, packing in _OTHER_PACKINGS.items():
        if head.startswith(magic):
            raise UnreadableInputError(f"{shown} is packed with {packing}", "Unpack it, or pack it with gzip.")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start not in {b"{", b"["}:
        if shown.endswith(".gz"):
            raise UnreadableInputError(f"{shown} is named .gz but is not gzip", "Copy the file again, in binary mode.")
        raise NotATraceError(f"{shown} is not JSON")
    if packed > cap:
        raise _too_large(shown, cap, why)
    text = bytearray(head)
    # A file that grows while it is read is taken at the size it had.
    while len(text) < packed and (piece := file.read(min(64 << 20, packed - len(text)))):
        text += piece
    return text


def _inflate(file: FileIO, head: bytes, packed: int, shown: str, limits: ReadLimits, cap: int, why: str) -> bytearray:
    """Unpack gzip members one after another, a few MB at a time, and stop at the first bound that is crossed."""
    text = bytearray()
    piece, taken = head, len(head)
    stream = _deflate.decompressobj(_GZIP_WINDOW)
    try:
        while piece:
            text += stream.decompress(piece, _STEP)
            if len(text) > cap:
                raise _too_large(shown, cap, why)
            if len(text) > limits.ratio_free_bytes and len(text) > taken * limits.max_ratio:
                raise TooLargeError(
                    f"{shown} unpacks to more than {limits.max_ratio} times its size; no profiler's trace does",
                    "Do not trust this file. If it is a trace, unpack it yourself and give the .json.",
                )
            if stream.eof:
                piece = stream.unused_data.lstrip(b"\0")  # gzip allows zero padding after a member
                if not piece:
                    piece = file.read(_PIECE).lstrip(b"\0")
                    taken += len(piece)
                if piece:
                    if not piece.startswith(_GZIP[: len(piece)]):
                        raise UnreadableInputError(
                            f"{shown} has other bytes after its gzip data", "Copy the file again, in binary mode."
                        )
                    stream = _deflate.decompressobj(_GZIP_WINDOW)
            else:
                piece = stream.unconsumed_tail
                if not piece:
                    piece = file.read(_PIECE)
                    taken += len(piece)
    except (zlib.error, _deflate.error) as error:
        raise UnreadableInputError(f"{shown} is a damaged gzip file ({error})", _KILLED) from error
    if not stream.eof:
        raise UnreadableInputError(
            f"{shown} is a gzip file cut short: it ends after {packed} bytes, {len(text)} unpacked", _KILLED
        )
    return text


def _cap(limits: ReadLimits) -> tuple[int, str]:
    """How many bytes may be unpacked, and which bound says so."""
    free = free_memory_bytes()
    if free is not None and free // MEMORY_PER_JSON_BYTE < limits.max_bytes:
        return max(1, free // MEMORY_PER_JSON_BYTE), "the free memory of this machine allows"
    return limits.max_bytes, "the limit on one trace allows"


def _too_large(shown: str, cap: int, why: str) -> TooLargeError:
    hint = "Close other programs or use a larger machine; else record fewer steps." if "memory" in why else None
    return TooLargeError(f"{shown} unpacks to more than {cap / 1e9:.1f} GB, all that {why}", hint)
