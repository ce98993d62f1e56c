"""Distinguish the user's code from library code, and name the cells of notebooks."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

#: Directories of installed packages.
_INSTALLED = ("site-packages", "dist-packages")
#: gpudiag's directory as imported, and with links resolved, because the package may be imported through a link.
_PACKAGE = (str(Path(__file__).parents[2]), str(Path(__file__).resolve().parents[2]))
#: File names of notebook cells.
_CELLS = ("<ipython-input-", "/ipykernel_", "\\ipykernel_")
#: Packages that never drive a training loop.
_NEVER_A_LOOP = ("torch", "tensorflow", "keras")


@functools.lru_cache(maxsize=8192)
def is_own(file: str) -> bool:
    """Return whether a file is the user's: a notebook cell, or outside Python, installed packages and gpudiag."""
    if any(cell in file for cell in _CELLS):
        return True
    if file.startswith("<") or not file:
        return False
    path = Path(file)
    if any(part in _INSTALLED for part in path.parts):
        return False
    # If the program was started as `python train.py`, the path is relative.
    return not (path.is_absolute() and any(path.is_relative_to(folder) for folder in (*_PACKAGE, *_standard_library())))


def shown_name(file: str) -> str:
    """Return "Cell In[3]" for the file name of notebook cell 3. Return other file names unchanged."""
    if not any(cell in file for cell in _CELLS):
        return file
    with contextlib.suppress(Exception):  # IPython's compiler may differ between versions
        label, number = sys.modules["IPython"].get_ipython().compile.format_code_name(file)
        return f"{label} {number}"
    # Without IPython only names `<ipython-input-3-…>` contain the cell's number.
    number = file.removeprefix(_CELLS[0]).partition("-")[0]
    return f"Cell In[{number}]" if file.startswith(_CELLS[0]) and number.isdecimal() else file


@functools.lru_cache(maxsize=8192)
def drives_loops(file: str) -> bool:
    """Return whether a file belongs to an installed package that may run a training loop."""
    parts = Path(file).parts
    for index, part in enumerate(parts):
        if part in _INSTALLED:
            return index + 1 < len(parts) and parts[index + 1] not in _NEVER_A_LOOP
    return False


@functools.cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(
        {folder for name in ("stdlib", "platstdlib") for folder in (paths[name], os.path.realpath(paths[name]))}
    )


def loop_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the user's code, and of libraries that may run the training loop, the outermost first."""
    frames: list[FrameType] = []
    while frame is not None:
        if is_own(frame.f_code.co_filename) or drives_loops(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]
