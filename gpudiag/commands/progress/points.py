"""How far a scaling benchmark is: which point is being measured. Always on standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpudiag.commands.progress.status_line import StatusLine

if TYPE_CHECKING:
    from gpudiag.app.scale.launches import Launch
    from gpudiag.training.session.progress import Progress


class PointProgress(StatusLine):
    """A line that changes in a terminal, a line per point in a pipe."""

    def heard(self, message: Progress, launch: Launch) -> None:
        """Take in one message; a sweep says which of its entries it begins, and only then how many there are."""
        if message.phase != "starting" or message.of is None or not 0 <= message.steps < len(launch.points):
            return
        record = launch.points[message.steps].record
        doing = "recording" if message.steps >= len(launch.timed) else "measuring"
        where = f"{record.devices} x {record.batch_per_device}"
        if record.alone:
            where = f"device {record.device_indices[0]} alone"
        self.say(f"{doing} {record.workload}, {record.strategy}, {where} ({message.steps + 1} of {message.of})")
