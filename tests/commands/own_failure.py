"""A function of a user's own that fails, in a file that needs no framework: its processes start in no time."""

from __future__ import annotations

import os
import time


def fails() -> None:
    """One rank raises before it measures anything."""
    if os.environ["RANK"] == "1":
        raise ValueError("[bold]not[/bold] my day\x1b[31m")
    time.sleep(60)
