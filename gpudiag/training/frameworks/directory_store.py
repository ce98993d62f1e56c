"""A key-value store in a directory: enough for the processes of one node to agree through."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import quote

#: Names the directory; set by the launcher where the framework brings no store.
STORE_VARIABLE = "GPUDIAG_STORE"


class DirectoryStore:
    """Each key is a file, written whole or not at all. The interface is that part of torch's `Store` which we use.

    Args:
        directory: private to the user, empty at first; made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        handle, name = tempfile.mkstemp(dir=self._directory, prefix=".")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(value)
        Path(name).replace(self._path(key))

    def get(self, key: str) -> bytes:
        """The value of a key that has been set. Raises FileNotFoundError otherwise."""
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        """Have all of them been set?"""
        return all(self._path(key).is_file() for key in keys)

    def _path(self, key: str) -> Path:
        return self._directory / quote(key, safe="")
