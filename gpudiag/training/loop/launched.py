"""Store the run for which gpudiag started this process. Sessions read their run directory and options from here."""

from __future__ import annotations

from pathlib import Path

from gpudiag.model.job import Job
from gpudiag.model.structs import msgspec
from gpudiag.training.session.step_counts import TimingTarget


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """The run to which this process belongs.

    Attributes:
        run_dir: directory that every session of this process writes to. The argument `run_dir` of a session is ignored.
        job: the training, and the user's options for the run.
        target: required precision of the step time, which determines the number of unprofiled steps.
        warmup_s: maximum seconds of automatic warm-up; None for the session's usual limit.
        recorded: False to profile no steps.
    """

    run_dir: Path
    job: Job
    target: TimingTarget | None = None
    warmup_s: float | None = None
    recorded: bool = True


_current: Launched | None = None


def set_launched(launched: Launched | None) -> None:
    """Set the run to which this process belongs; None for no run."""
    global _current  # noqa: PLW0603  # a process belongs to one run
    _current = launched


def launched() -> Launched | None:
    """Return the run for which gpudiag started this process; None in a program that the user started."""
    return _current
