"""How far a selftest is: which fault is being timed or recorded. Always on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.commands.progress.status_line import StatusLine

if TYPE_CHECKING:
    from gpudiag.training.session.progress import Progress

_DOING = {"starting": "starting", "warmup": "warming up", "timed": "timing", "profiled": "recording"}


class FaultProgress(StatusLine):
    """A line that changes in a terminal, a line per event in a pipe. Rank 0 speaks for all, as all go in step."""

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
