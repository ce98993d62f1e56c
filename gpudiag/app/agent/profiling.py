"""Profile a command for an agent, if the user allowed it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpudiag.errors import UsageError
from gpudiag.training.own_program import own_program

#: Maximum number of characters of the command's output in the answer.
_MOST_OUTPUT = 4000
LONGEST_S = 3600.0
#: Seconds that the command gets to end after SIGTERM, before it gets SIGKILL.
_GRACE_S = 20.0


def profile_command(command: Sequence[str], root: Path, output: Path, timeout_s: float) -> dict[str, Any]:
    """Run `gpudiag profile --stop-after -- COMMAND` in the directory `root`.

    Return the run directory, the exit code, whether the time limit was reached, and the end of the command's output.
    After `timeout_s` seconds, at most one hour, the command and its processes are ended.

    Raises:
        UsageError: the command is empty, or `output` exists.
    """
    if not command:
        raise UsageError("there is no command", 'Give its words, such as ["python", "train.py"].')
    if output.exists():
        raise UsageError(f"{output} exists already", "Choose a new directory for the recording.")
    options = ("profile", "--stop-after", "--output", str(output))
    process = subprocess.Popen(
        own_program("gpudiag.__main__", *options, "--", *command),
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # one signal then reaches gpudiag and all processes of the command
    )
    timed_out = False
    try:
        printed, _ = process.communicate(timeout=min(timeout_s, LONGEST_S))
    except subprocess.TimeoutExpired:
        timed_out = True
        printed = _terminate(process)
    text = printed.decode(errors="replace")
    return {
        "run_dir": str(output.relative_to(root)),
        "exit_code": process.returncode,
        "timed_out": timed_out,
        "last_output": text[-_MOST_OUTPUT:],
        "output_characters": len(text),
    }


def _terminate(process: subprocess.Popen[bytes]) -> bytes:
    """Send SIGTERM to gpudiag, which passes it on to the command. After `_GRACE_S`, kill both. Return the output."""
    process.terminate()
    try:
        printed, _ = process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
    return printed
