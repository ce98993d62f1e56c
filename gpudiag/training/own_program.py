"""Run a module of this gpudiag in another process. Only the standard library is imported, because trainings use it."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

#: Niceness of an analysis beside a training (at most 19), so that the training has priority if both need one core.
_NICE = 15
#: Imports gpudiag from this process's location. The option `-P` excludes the current directory.
_PROGRAM = "import sys; sys.path.append({root!r}); from {module} import main; sys.exit(main())"


def own_program(module: str, *arguments: str) -> list[str]:
    """Return a command that calls `main()` of a module of gpudiag with these arguments, in any directory."""
    program = _PROGRAM.format(root=str(Path(__file__).parents[2]), module=module)
    return [sys.executable, "-P", "-c", program, *arguments]


def lower_priority(pid: int) -> None:
    """Give a process a low priority, if it still runs."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
