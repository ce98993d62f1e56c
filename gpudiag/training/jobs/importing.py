"""Imports that are large, without Python's garbage collections.

A framework makes objects by the hundred thousand while it is imported, nearly all of which stay: each collection looks
through them in vain. On two cores importing torch and torch._dynamo and ending took 3.2 s, and 2.2 s with this.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in here; afterwards again, unless it was off before."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def end_without_collections() -> None:
    """The interpreter ends, and is not to look once more through all that it will give back anyway.

    What is registered with `atexit` still runs.
    """
    gc.freeze()
