"""How far a selftest is: which fault is being timed or recorded. Always on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from gpudiag.worker.progress import Progress

_DOING = {"starting": "starting", "warmup": "warming up", "timed": "timing", "profiled": "recording"}


class FaultProgress:
    """A line that changes in a terminal, a line per event in a pipe. Rank 0 speaks for all, as all go in step."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = ""

    def __enter__(self) -> FaultProgress:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, markup=False, highlight=False).status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def heard(self, message: Progress, faults: tuple[str, ...]) -> None:
        """Take in one message of a launch that goes through these faults."""
        doing = _DOING.get(message.phase)
        if message.rank != 0 or doing is None:
            return
        if 0 < message.steps <= len(faults):
            if message.phase == "warmup":
                return
            self.say(f"{doing} {faults[message.steps - 1]} ({message.steps} of {len(faults)})")
        else:
            self.say(doing)

    def say(self, line: str) -> None:
        """Show what is done now."""
        if self._status is not None:
            self._status.update(line)
        elif line != self._last:
            print(f"gpudiag: {line}", file=sys.stderr, flush=True)  # noqa: T201
        self._last = line
