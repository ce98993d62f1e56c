"""Provide a user-defined function that fails. The module imports no framework, so processes that load it start fast."""

from __future__ import annotations

import os
import time


def fails() -> None:
    """Raise an exception on rank 1 before it measures a step; rank 0 sleeps."""
    if os.environ["RANK"] == "1":
        raise ValueError("[bold]not[/bold] my day\x1b[31m")
    time.sleep(60)
