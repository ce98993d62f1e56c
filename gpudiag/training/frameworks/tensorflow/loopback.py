"""Keeps TensorFlow's servers on the loopback address: by a library that is loaded before theirs, made where there is a
C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gpudiag.errors import FrameworkMissingError

_SOURCE = Path(__file__).with_name("loopback.c")
_COMPILE_S = 60


def preload(directory: Path, inherited: str | None) -> str:
    """The value of LD_PRELOAD.

    Args:
        directory: private to this launch; the library is made in it.
        inherited: what the user preloads.

    Raises:
        FrameworkMissingError: there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc") or shutil.which("clang")
    target = directory / "loopback.so"
    try:
        if compiler is None:
            raise FileNotFoundError("there is no C compiler")
        command = [compiler, "-O1", "-shared", "-fPIC", str(_SOURCE), "-o", str(target), "-ldl"]
        subprocess.run(command, capture_output=True, timeout=_COMPILE_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise FrameworkMissingError(
            f"TensorFlow's servers would listen on every network interface ({error})",
            "Install a C compiler (cc), with which gpudiag keeps them on this machine, or choose another strategy.",
        ) from error
    return " ".join(filter(None, (str(target), inherited)))
