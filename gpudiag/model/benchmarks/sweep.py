"""Define a sweep: several training jobs that run in sequence in one set of processes."""

from __future__ import annotations

import msgspec

from gpudiag.model.job import Job
from gpudiag.model.quantities import Ordinal, Rate, Seconds

#: File with a job's outcome beside the job's record, written when the job's turn begins and when it ends.
OUTCOME_SCHEMA = "gpudiag/outcome/1"
OUTCOME_FILE = "outcome.json"


class SweepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a sweep.

    Attributes:
        directory: run directory, relative to the parent of the sweep's directory.
        ranks: the sweep's processes that take part, on GPUs also the device indices; the other processes wait.
        accuracy: required half of the 95 % interval of the mean step time, as a share of the mean.
        seconds: maximum total time of unprofiled steps.
        warmup_s: longest automatic warm-up.
        recorded: profile a few steps after the unprofiled ones.
        not_after_s: latest begin, in seconds after the begin of the sweep; None for no limit.
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
    """All jobs in the order of execution."""

    entries: tuple[SweepEntry, ...]


class EntryOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one entry. If only `began` is set, the entry did not end.

    Attributes:
        seconds: duration including set-up.
        error: reason of a failure, one line.
        out_of_memory: whether the entry failed because a device's memory was insufficient.
        usage: whether the entry failed because its options contradict each other.
    """

    schema: str = OUTCOME_SCHEMA
    began: str
    done: bool = False
    seconds: Seconds = 0.0
    error: str | None = None
    out_of_memory: bool = False
    usage: bool = False
