"""How far `gpudiag recommend` is, for people. Always on standard error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gpudiag.commands.progress.status_line import StatusLine

if TYPE_CHECKING:
    from gpudiag.training.session.progress import Progress

_DOING = {"starting": "starting", "warmup": "preparing strategies", "timed": "measuring by turns", "done": "judging"}


class StrategyBenchmarkProgress(StatusLine):
    """A line that changes in a terminal, a line per event in a pipe. Rank 0 speaks for all, as all go in step."""

    def __init__(self) -> None:
        super().__init__()
        self._turns_began = 0.0

    def heard(self, message: Progress) -> None:
        """Take in one message."""
        doing = _DOING.get(message.phase)
        if message.rank != 0 or doing is None:
            return
        if message.phase == "timed" and message.of:
            if not message.steps:
                self._turns_began = time.monotonic()
                self.say(doing)
                return
            per_round = (time.monotonic() - self._turns_began) / message.steps
            left = per_round * (message.of - message.steps)
            self.say(f"{doing}: round {message.steps + 1}, at most {left:.0f} s more", lasting=False)
            return
        self.say(doing)
