"""Scenes of real traces, as the pipeline makes them."""

from __future__ import annotations

from functools import cache

from gpudiag.pipeline import Shown, show
from tests.readers.documents import TRACES


@cache
def shown(name: str) -> Shown:
    """What is shown of one of the recorded jobs."""
    return show([TRACES / name])
