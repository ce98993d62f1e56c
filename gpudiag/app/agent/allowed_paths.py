"""Check the paths that an agent names: they must lie in the directory that the user allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpudiag.errors import UsageError

#: Maximum number of paths in one question.
_MOST_PATHS = 1024


class AllowedPaths:
    """The paths in one directory. Links are followed before the check, so that no link leads out of the directory.

    Args:
        root: the directory.

    Raises:
        UsageError: `root` is no directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise UsageError(f"--root {root} is no directory", "Name the directory with the recordings.")

    def existing(self, paths: Sequence[str]) -> list[str]:
        """Return the paths as absolute paths without links. Patterns are not expanded.

        Raises:
            UsageError: no path or too many paths are given, or a path is missing or outside of the directory.
        """
        if not 0 < len(paths) <= _MOST_PATHS:
            raise UsageError(f"give 1 to {_MOST_PATHS} paths, not {len(paths)}", "Name one run directory.")
        checked = [self.inside(path) for path in paths]
        for path, resolved in zip(paths, checked, strict=True):
            if not resolved.exists():
                raise UsageError(f"{path!r} does not exist in {self.root}", "Check the path.")
        return [str(path) for path in checked]

    def inside(self, path: str) -> Path:
        """Return the path as an absolute path without links. The path need not exist.

        Raises:
            UsageError: the path is outside of the directory.
        """
        if "\0" in path:
            raise UsageError("a path has a null character", "Check the path.")
        resolved = (self.root / path).resolve()
        if not resolved.is_relative_to(self.root):
            raise UsageError(
                f"{path!r} is outside of {self.root}", "Start `gpudiag mcp --root DIR` for that directory."
            )
        return resolved
