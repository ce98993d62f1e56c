"""A sweep: several training jobs that one set of processes goes through, one after the other."""

from __future__ import annotations

import msgspec

from gpudiag.model.job import Job
from gpudiag.model.quantities import Ordinal, Rate, Seconds

#: Beside a job's own record: written when its turn came, with what became of it.
OUTCOME_SCHEMA = "gpudiag/outcome/1"
OUTCOME_FILE = "outcome.json"


class SweepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a sweep.

    Attributes:
        directory: its run directory, relative to the directory above the sweep's own.
        job: what is trained.
        ranks: the processes of the sweep that take part; the others wait until it is over. On GPUs also the devices.
        accuracy, seconds: as in `gpudiag.training.session.enough.Enough`.
        warmup_s: automatic warm-up ends after this long in any case.
        recorded: profile a few steps after the timed ones.
        not_after_s: not begun later than this many seconds after the first entry; None for no limit.
    """

    directory: str
    job: Job
    ranks: tuple[Ordinal, ...]
    accuracy: Rate
    seconds: Seconds
    warmup_s: Seconds
    recorded: bool = False
    not_after_s: Seconds | None = None


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True, tag="sweep"):
    """All jobs, in their order."""

    entries: tuple[SweepEntry, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one entry: `began` with nothing else says that it never came to its end.

    Attributes:
        seconds: how long it took, set-up included.
        error: why it failed, one line.
        out_of_memory: it failed because a device's memory was not enough.
        usage: it failed because it asks for what does not go together.
    """

    schema: str = OUTCOME_SCHEMA
    began: str
    done: bool = False
    seconds: Seconds = 0.0
    error: str | None = None
    out_of_memory: bool = False
    usage: bool = False
