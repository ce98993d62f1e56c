"""How far a scaling benchmark is: which point is being measured. Always on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from gpudiag.scaling.launches import Launch
    from gpudiag.worker.progress import Progress


class PointProgress:
    """A line that changes in a terminal, a line per point in a pipe."""

    def __init__(self) -> None:
        self._status: Any = None
        self._last = ""

    def __enter__(self) -> PointProgress:
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

    def heard(self, message: Progress, launch: Launch) -> None:
        """Take in one message; a sweep says which of its entries it begins, and only then how many there are."""
        if message.phase != "starting" or message.of is None or not 0 <= message.steps < len(launch.cases):
            return
        case = launch.cases[message.steps]
        doing = "recording" if message.steps >= len(launch.timed) else "measuring"
        point = case.point
        where = f"{point.devices} x {point.batch_per_device}"
        if point.alone:
            where = f"device {point.device_indices[0]} alone"
        self.say(f"{doing} {point.workload}, {point.strategy}, {where} ({message.steps + 1} of {message.of})")

    def say(self, line: str) -> None:
        """Show what is done now."""
        if self._status is not None:
            self._status.update(line)
        elif line != self._last:
            print(f"gpudiag: {line}", file=sys.stderr, flush=True)  # noqa: T201
        self._last = line
