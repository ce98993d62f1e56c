"""The run for which gpudiag started this process; sessions take their run directory and options from it."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.job import Job
from gpudiag.model.structs import msgspec
from gpudiag.training.session.step_counts import TimingTarget


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The run that this process is a rank of.

    Attributes:
        run_dir: every session of this process writes there, whatever directory it was given.
        job: the training, and how the run was asked for.
        target: precision of the step time, which decides on the number of unprofiled steps.
        warmup_s: automatic warm-up ends after this long in any case; None for the session's own limit.
        recorded: False to profile no steps.
    """

    run_dir: Path
    job: Job
    target: TimingTarget | None = None
    warmup_s: float | None = None
    recorded: bool = True


_current: Launched | None = None


def set_launched(launched: Launched | None) -> None:
    """Set the run, once, in the program that gpudiag starts, before it trains."""
    global _current  # noqa: PLW0603  # a process is started once
    _current = launched


def launched() -> Launched | None:
    """Return the run that this process was started for, or None in a program that the user started."""
    return _current
