"""A sweep: several training jobs that run in sequence in one set of processes."""

from __future__ import annotations

import msgspec

from gpudiag.model.job import Job
from gpudiag.model.quantities import Ordinal, Rate, Seconds

#: File beside a job's record, written when its turn came, with the outcome.
OUTCOME_SCHEMA = "gpudiag/outcome/1"
OUTCOME_FILE = "outcome.json"


class SweepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a sweep.

    Attributes:
        directory: its run directory, relative to the directory above the sweep's.
        ranks: the participating processes of the sweep; the others wait. On GPUs also the devices.
        accuracy, seconds: as in `gpudiag.training.session.step_counts.TimingTarget`.
        warmup_s: longest automatic warm-up.
        recorded: profile a few steps after the unprofiled ones.
        not_after_s: latest begin after the first entry, in seconds; None for no limit.
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


class EntryOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one entry; an outcome with only `began` means that the entry did not end.

    Attributes:
        seconds: duration, set-up included.
        error: why it failed, one line.
        out_of_memory: it failed because a device's memory was insufficient.
        usage: it failed because its options contradict each other.
    """

    schema: str = OUTCOME_SCHEMA
    began: str
    done: bool = False
    seconds: Seconds = 0.0
    error: str | None = None
    out_of_memory: bool = False
    usage: bool = False
