"""Put the output of commands into the guides, between marks that name the command.

    <!-- begin: output of COMMAND -->
    <!-- end: output -->

In COMMAND, several commands are separated by ` && `. Each runs in the repository's root, and its output follows its
line.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

GUIDES = Path(__file__).parent / "guides"
_MARKED = re.compile(r"<!-- begin: output of (.+?) -->\n.*?<!-- end: output -->", re.DOTALL)
COLUMNS = "100"


def guide_pages() -> dict[Path, str]:
    """Return each guide with the current output of its commands."""
    return {path: _with_outputs(path.read_text(encoding="utf-8")) for path in sorted(GUIDES.glob("*.md"))}


def _with_outputs(page: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        terminal = "".join(f"$ {command}\n{_printed(command)}" for command in match[1].split(" && "))
        return f"<!-- begin: output of {match[1]} -->\n```text\n{terminal}```\n<!-- end: output -->"

    return _MARKED.sub(replaced, page)


def _printed(command: str) -> str:
    """Return what a command prints on a terminal; `gpudiag` and `python` run in this interpreter's environment."""
    words = shlex.split(command)
    start = {"gpudiag": ["-m", "gpudiag"], "python": []}[words[0]]
    result = subprocess.run(
        [sys.executable, *start, *words[1:]],
        capture_output=True,
        text=True,
        check=True,
        cwd=GUIDES.parents[1],
        env={**os.environ, "COLUMNS": COLUMNS},
    )
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
