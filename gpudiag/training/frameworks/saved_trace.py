"""The file that a profiler has written: what is in it, and compressed as the run keeps it."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

#: zlib level of a saved trace: within 10 % of the best level's size, in a fraction of its time.
_GZIP_LEVEL = 3
_CHUNK = 1 << 20
#: Nothing that is looked for is longer.
_OVERLAP = 64


def compress(plain: Path, target: Path) -> None:
    """Write the file compressed. Raises OSError."""
    with plain.open("rb") as source, gzip.open(target, "wb", compresslevel=_GZIP_LEVEL) as written:
        shutil.copyfileobj(source, written, _CHUNK)


def contains(path: Path, pattern: bytes) -> bool:
    """Whether this pattern, of at most 64 bytes, is anywhere in the file: read in pieces, up to the first place."""
    wanted = re.compile(pattern)
    last = b""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            if wanted.search(last + piece):
                return True
            last = piece[-_OVERLAP:]
    return False
