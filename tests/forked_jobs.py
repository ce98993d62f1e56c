"""Run gpudiag in this process, and its training processes as forks of a process that has imported PyTorch.

Tests of imports, of command lines, and of a killed gpudiag use separate processes instead.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest import mock

from gpudiag.training.attach import start
from gpudiag.training.launch import launcher
from tests.cli_process import in_this_process
from tests.forked_programs import ForkedProgram


def with_forked_jobs(*words: str, cwd: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run one command line in this process, and its training jobs in forks."""
    with _popen_of(launcher, _guard), mock.patch.object(sys, "argv", ["gpudiag", *words]):
        return in_this_process(*words, cwd=cwd, **changes)


def _guard(command: list[str], *, stdout: IO[bytes], env: dict[str, str], **_options: Any) -> ForkedProgram:
    """Start the guard of a job: python -I guard.py PRIVATE python -I starter.py FRAMEWORK PROCESSES COMMAND.

    The guard starts the starter, and the starter starts PROCESSES ranks.
    """
    ranks = int(command[command.index("-I", 2) + 3])
    log = Path(stdout.name).absolute()
    return ForkedProgram(command, env, [[[] for _ in range(ranks)]], out=log, err=log, own_session=True)


def forked_commands(starts: int = 0) -> contextlib.AbstractContextManager[object]:
    """Let `gpudiag profile -- COMMAND` run COMMAND, and the `starts` Python programs that it starts, in forks."""
    return forked_programs_of(start, starts)


def forked_programs_of(module: ModuleType, starts: int = 0) -> contextlib.AbstractContextManager[object]:
    """Let a module run Python programs in forks. The `starts` programs that each of these starts run in forks too."""

    def popen(command: Sequence[str], *, env: Mapping[str, str] = os.environ) -> ForkedProgram:
        out, err = (Path(f"/proc/{os.getpid()}/fd/{number}") for number in (1, 2))  # the output of this process
        return ForkedProgram(command, env, [[] for _ in range(starts)], out=out, err=err)

    return _popen_of(module, popen)


def _popen_of(module: ModuleType, popen: Callable[..., ForkedProgram]) -> contextlib.AbstractContextManager[object]:
    """Replace `subprocess.Popen` in one module."""
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "STDOUT", "TimeoutExpired")}
    return mock.patch.object(module, "subprocess", SimpleNamespace(Popen=popen, **names))
