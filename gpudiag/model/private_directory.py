"""Check that only this user and root can put files into a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path


def cache_home(environment: Mapping[str, str]) -> Path:
    """Return `$XDG_CACHE_HOME`, by default ~/.cache; a relative path is ignored (XDG Base Directory Specification).

    Raises:
        RuntimeError: this user has no home directory.
    """
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    return base if base.is_absolute() else Path.home() / ".cache"


def is_private(directory: Path) -> bool:
    """Return whether only this user and root can put files into a directory, or replace the directory.

    The directory must be no link and belong to this user. Directories above it may belong to root, and may be writable
    by others if they are sticky, as /tmp is: nobody can replace what another user has in them.

    Raises:
        OSError: it cannot be inspected.
    """
    status = directory.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.getuid()
        or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        return False
    return all(_cannot_be_replaced(above) for above in directory.resolve().parents)


def _cannot_be_replaced(above: Path) -> bool:
    status = above.stat()
    if status.st_uid not in {0, os.getuid()}:
        return False
    by_others = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and status.st_gid not in {0, os.getgid()}
    )
    return not by_others or bool(status.st_mode & stat.S_ISVTX)
