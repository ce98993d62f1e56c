"""Run gpudiag in a real terminal of a given size."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

from tests.cli_process import SECONDS, environment


def in_terminal(*words: str, columns: int, **changes: str) -> tuple[int, str]:
    """Run one command line in a pseudo-terminal; return its exit code and output, with line ends as in a file."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "gpudiag", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**changes),
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux raises OSError when the last writer has closed the terminal
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(timeout=SECONDS), shown.decode().replace("\r\n", "\n")
