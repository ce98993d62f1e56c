"""Make export models of real traces."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpudiag.app.export import Recorded, read_recorded
from tests.trace.documents import TRACES

if TYPE_CHECKING:
    from gpudiag.report.export.model import ExportTrack


@cache
def exported_job(name: str) -> Recorded:
    """Return the export of one of the recorded jobs."""
    return read_recorded([TRACES / name])


def total_ns(track: ExportTrack) -> int:
    """Return the sum of the durations."""
    return int((track.end - track.start).sum())
