"""What a process knows when gpudiag itself started it; its sessions take their run directory and options from here."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.job import Job
from gpudiag.model.structs import msgspec
from gpudiag.training.session.enough import Enough


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The run that this process is part of.

    Attributes:
        run_dir: where every session of this process writes, whatever directory it was given.
        job: what is trained, and how the run was asked for.
        enough: how well the step time is to be known, which decides on the number of timed steps.
        warmup_s: automatic warm-up ends after this long in any case; None for the session's own limit.
        recorded: False where no steps are to be profiled.
    """

    run_dir: Path
    job: Job
    enough: Enough | None = None
    warmup_s: float | None = None
    recorded: bool = True


_current: Launched | None = None


def set_launched(launched: Launched | None) -> None:
    """Called once, by the program that gpudiag starts, before it trains."""
    global _current  # noqa: PLW0603  # a process is started once
    _current = launched


def launched() -> Launched | None:
    """The run that this process was started for, or None in a program that the user started."""
    return _current
