"""Tell the user's own source files from those of libraries."""

from __future__ import annotations

import functools
import sysconfig
from pathlib import Path

#: Directories of installed packages, wherever they are.
_INSTALLED = ("site-packages", "dist-packages")
#: gpudiag, and this prototype.
_PACKAGES = (str(Path(__file__).resolve().parents[2] / "gpudiag"), str(Path(__file__).resolve().parent))
#: File names that IPython and ipykernel give to cells of a notebook.
_CELLS = ("<ipython-input-", "/ipykernel_", "\\ipykernel_")
#: Packages whose frames are never shown as lines of a loop.
_NEVER_A_LOOP = ("torch", "tensorflow", "keras")


@functools.lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Return True for the user's own files and notebook cells: no standard library, installed package or gpudiag."""
    if any(cell in file for cell in _CELLS):
        return True
    if file.startswith("<") or not file:
        return False
    path = Path(file)
    if any(part in _INSTALLED for part in path.parts):
        return False
    return not _below(path, (*_PACKAGES, *_standard_library()))


@functools.lru_cache(maxsize=4096)
def drives_loops(file: str) -> bool:
    """Return True for installed packages that may run a training loop: not PyTorch, the standard library or gpudiag."""
    parts = Path(file).parts
    for at, part in enumerate(parts):
        if part in _INSTALLED:
            return at + 1 < len(parts) and parts[at + 1] not in _NEVER_A_LOOP
    return False


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib")})


def _below(path: Path, directories: tuple[str, ...]) -> bool:
    # Only absolute paths are compared; a relative one comes from a program started as `python train.py`.
    return path.is_absolute() and any(path.is_relative_to(directory) for directory in directories)
