"""How far `gpudiag recommend` is, for people. Always on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from gpudiag.worker.progress import Progress

_DOING = {"starting": "starting", "warmup": "preparing strategies", "timed": "measuring by turns", "done": "judging"}


class ContestProgress:
    """A line that changes in a terminal, a line per event in a pipe. Rank 0 speaks for all, as all go in step."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = ""
        self._began = time.monotonic()
        self._turns_began = 0.0

    def __enter__(self) -> ContestProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def heard(self, message: Progress) -> None:
        """Take in one message."""
        doing = _DOING.get(message.phase)
        if message.rank != 0 or doing is None:
            return
        if message.phase == "timed" and message.of:
            if not message.steps:
                self._turns_began = time.monotonic()
                self._show(doing)
                return
            per_round = (time.monotonic() - self._turns_began) / message.steps
            left = per_round * (message.of - message.steps)
            self._show(f"{doing}: round {message.steps + 1}, at most {left:.0f} s more", lasting=False)
            return
        self._show(doing)

    def say(self, line: str) -> None:
        """Tell what is about to be done."""
        print(f"gpudiag: {line}", file=sys.stderr, flush=True)  # noqa: T201

    def _show(self, line: str, *, lasting: bool = True) -> None:
        """Show what is done now; in a pipe only what lasts a while, once."""
        if sys.stderr.isatty():
            if self._status is None:
                from rich.console import Console

                self._status = Console(stderr=True, markup=False, highlight=False).status(line)
                self._status.start()
            self._status.update(line)
        elif lasting and line != self._last:
            self.say(line)
            self._last = line
