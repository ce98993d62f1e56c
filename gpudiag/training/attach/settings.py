"""What a command's processes are told, in one variable of their environment. Imports nothing that takes time."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

#: Holds `Settings` as JSON.
VARIABLE = "GPUDIAG_ATTACH"

#: Seconds without a step of an optimizer after which a process that computes is recorded for a while instead.
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the command is to be measured.

    Attributes:
        run_dir: the run directory, absolute: the command may change its own.
        command: as it was given.
        stop: end the command's processes when all is measured.
        steps: timed steps; None to choose by their length.
        warmup: steps left out first; None to find out from their times.
        patience_s: as `PATIENCE_S`.
        reports: where each process says what became of it, as long as the command runs; "" for nowhere.
        run_id: of ranks that are measured each for itself; others agree on one.
    """

    run_dir: str
    command: tuple[str, ...]
    stop: bool = False
    steps: int | None = None
    warmup: int | None = None
    patience_s: float = PATIENCE_S
    reports: str = ""
    run_id: str = ""

    def encode(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))


def settings() -> Settings | None:
    """What this process was told; None in one that belongs to no such command."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        known = json.loads(text)
        return Settings(**{**known, "command": tuple(known["command"])})
    except (ValueError, KeyError, TypeError):
        return None
