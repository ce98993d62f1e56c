"""Scenes of real traces, as `gpudiag export` makes them."""

from __future__ import annotations

from functools import cache

from gpudiag.app.export import Recorded, read_recorded
from tests.trace.documents import TRACES


@cache
def shown(name: str) -> Recorded:
    """What is shown of one of the recorded jobs."""
    return read_recorded([TRACES / name])
