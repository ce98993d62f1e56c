"""Run Python programs, and their child programs, as forks of one process that has imported PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forked import Forked
from tests.forked_child import Tree

_FIRST = "from tests.forked_child import become_first; become_first()"


class ForkedProgram(Forked):
    """A running program with the methods of a `subprocess.Popen`.

    Args:
        command: the command line of a Python program.
        env: its environment.
        starts: the Python programs that it starts, as a `Tree`; None for no programs.
        out, err: files for its output.
        own_session: start a session, as `subprocess.Popen` does with `start_new_session`.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        starts: Tree | None = None,
        *,
        out: Path,
        err: Path,
        own_session: bool = False,
    ) -> None:
        task = {"command": list(command), "starts": starts or [], "folder": str(Path.cwd()), "session": own_session}
        super().__init__(_FIRST, json.dumps(task), out=out, err=err, values=dict(env))
