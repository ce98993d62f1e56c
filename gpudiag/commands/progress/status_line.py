"""What is being done now, for people: a line that changes in a terminal, a line per event in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class StatusLine:
    """Always on standard error. A command's own kind takes in the messages of its processes."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str, *, lasting: bool = True) -> None:
        """Show what is done now; in a pipe only what lasts a while, and nothing twice."""
        if self._status is None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, markup=False, highlight=False).status(line)
            self._status.start()
        if self._status is not None:
            self._status.update(line)
        elif lasting and line != self._last:
            print(f"gpudiag: {line}", file=sys.stderr, flush=True)  # noqa: T201
            self._last = line
