"""Run a module of gpudiag in another process. Training processes load this file, so it needs no other package."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

#: Niceness of an analysis that runs beside a training, so that the training has priority. The maximum is 19.
_NICE = 15
#: Program that imports gpudiag from the location from which this process imported it, and calls `main` of a module.
_PROGRAM = "import sys; sys.path.append({root!r}); from {module} import main; sys.exit(main())"


def own_program(module: str, *arguments: str) -> list[str]:
    """Return a command that calls `main()` of a module of gpudiag with these arguments, in any directory."""
    program = _PROGRAM.format(root=str(Path(__file__).parents[2]), module=module)
    return [sys.executable, "-P", "-c", program, *arguments]


def lower_priority(pid: int) -> None:
    """Give a process a low priority, if it still runs."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
