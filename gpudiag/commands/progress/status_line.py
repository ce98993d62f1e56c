"""Show the progress of recommend, scale and selftest: as one changing line in a terminal, as lines in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from gpudiag.app.scale.launches import Launch
    from gpudiag.training.session.progress import Progress


class StatusLine:
    """A line of progress. Each subclass reads the messages of one command's processes."""

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
        """Show a line. In a pipe, print only lines that are `lasting` and differ from the line printed before."""
        if self._status is None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, markup=False, highlight=False).status(line)
            self._status.start()
        if self._status is not None:
            self._status.update(line)
        elif lasting and line != self._last:
            print(f"gpudiag: {line}", file=sys.stderr, flush=True)  # noqa: T201
            self._last = line


class StrategyBenchmarkProgress(StatusLine):
    """Progress of `gpudiag recommend`. Only rank 0's messages are read, because all ranks are in the same phase."""

    _PHASES: ClassVar = {
        "starting": "starting",
        "warmup": "preparing strategies",
        "timed": "measuring by turns",
        "done": "judging",
    }

    def __init__(self) -> None:
        super().__init__()
        self._turns_began = 0.0

    def heard(self, message: Progress) -> None:
        """Show the phase, and during turns the number of seconds that remain.

        During turns, a message has the number of completed rounds in the field `steps`.
        """
        phase = self._PHASES.get(message.phase)
        if message.rank != 0 or phase is None:
            return
        if message.phase != "timed" or not message.of:
            self.say(phase)
        elif not message.steps:
            self._turns_began = time.monotonic()
            self.say(phase)
        else:
            s_per_round = (time.monotonic() - self._turns_began) / message.steps
            left_s = s_per_round * (message.of - message.steps)
            self.say(f"{phase}: round {message.steps + 1}, at most {left_s:.0f} s more", lasting=False)


class FaultProgress(StatusLine):
    """Progress of `gpudiag selftest`. Only rank 0's messages are read, because all ranks are in the same phase."""

    _PHASES: ClassVar = {
        "starting": "starting",
        "warmup": "warming up",
        "timed": "timing",
        "lines": "timing lines",
        "profiled": "recording",
    }

    def heard(self, message: Progress, faults: tuple[str, ...]) -> None:
        """Show the phase and the current fault. `faults` are in the order in which the launch measures them.

        The message has the number of the fault, from 1, in the field `steps`.
        """
        phase = self._PHASES.get(message.phase)
        if message.rank != 0 or phase is None:
            return
        if not 0 < message.steps <= len(faults):
            self.say(phase)
        elif message.phase != "warmup":
            self.say(f"{phase} {faults[message.steps - 1]} ({message.steps} of {len(faults)})")


class PointProgress(StatusLine):
    """Progress of `gpudiag scale`: the point that is being measured."""

    def heard(self, message: Progress, launch: Launch) -> None:
        """Show the point that the launch begins. Only messages that announce a point contain the number of points.

        Such a message has the number of the point, from 0, in the field `steps`.
        """
        if message.phase != "starting" or message.of is None or not 0 <= message.steps < len(launch.points):
            return
        record = launch.points[message.steps].record
        action = "recording" if message.steps >= len(launch.timed) else "measuring"
        size = (
            f"device {record.device_indices[0]} alone"
            if record.alone
            else f"{record.devices} x {record.batch_per_device}"
        )
        self.say(f"{action} {record.workload}, {record.strategy}, {size} ({message.steps + 1} of {message.of})")
