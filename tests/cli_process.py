"""Run gpudiag as users do, in a separate process or in the current process, in an environment without settings."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from unittest import mock

from gpudiag.commands.main import main

if TYPE_CHECKING:
    from pathlib import Path

#: Timeout of a command in seconds, which is far longer than any command takes on a loaded machine. The timeout is only
#: for commands that hang.
SECONDS = 400


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without variables that affect the output, and with `changes`."""
    drawing = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "TERM"}
    return {key: value for key, value in os.environ.items() if key not in drawing} | {"TERM": "xterm"} | changes


def gpudiag(*words: str, cwd: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run one command line and wait for it."""
    return subprocess.run(
        [sys.executable, "-m", "gpudiag", *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(**changes),
        timeout=SECONDS,
        check=False,
    )


def in_this_process(*words: str, cwd: Path | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run one command line in this process.

    Tests use this function for command lines that gpudiag refuses before it runs anything.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(**changes), clear=True),
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
