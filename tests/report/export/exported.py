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
    """Return the recorded job `name` with its export model."""
    return read_recorded([TRACES / name])


def total_ns(track: ExportTrack) -> int:
    """Return the sum of the durations of a track's events, in ns."""
    return int((track.end - track.start).sum())
