"""How far a scaling benchmark is: which point is being measured. Always on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.commands.status_line import StatusLine

if TYPE_CHECKING:
    from gpudiag.scaling.launches import Launch
    from gpudiag.worker.progress import Progress


class PointProgress(StatusLine):
    """A line that changes in a terminal, a line per point in a pipe."""

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
