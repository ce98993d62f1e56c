"""Sweep: several training jobs that one set of processes runs, one after the other (`sweep.json`)."""

from __future__ import annotations

import msgspec

from gpudiag.model.job import Job
from gpudiag.model.quantities import Ordinal, Rate, Seconds

SWEEP_SCHEMA = "gpudiag/sweep/1"
SWEEP_FILE = "sweep.json"
#: Outcome of a job, beside its record; written when it begins and when it ends.
OUTCOME_SCHEMA = "gpudiag/outcome/1"
OUTCOME_FILE = "outcome.json"


class SweepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a sweep.

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


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, in order."""

    schema: str = SWEEP_SCHEMA
    entries: tuple[SweepEntry, ...]


class EntryOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one entry; with `began` alone it did not end.

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
