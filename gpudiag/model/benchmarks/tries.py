"""Tries: changes of a job, trained by turns with the unchanged job, and their savings beside the prediction."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.job import Change, Job
from gpudiag.model.quantities import Difference, Milliseconds

TRIES_SCHEMA = "gpudiag/tries/1"
#: File in the run directory.
TRIES_FILE = "tries.json"
#: Pairs of blocks, one of the unchanged and one of the changed job.
PAIRS = 8

#: Measured savings beside predicted ones; without a prediction `faster`, `slower` or `no-difference`.
TryVerdict = Literal[
    "as-predicted",
    "less-than-predicted",
    "more-than-predicted",
    "inconclusive",
    "faster",
    "slower",
    "no-difference",
    "skipped",
    "failed",
]


class TriesPlan(msgspec.Struct, frozen=True, kw_only=True, tag="tries"):
    """The changed jobs, in their order; the launch's job is the unchanged one."""

    jobs: tuple[Job, ...]


class ChangeTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one change.

    Attributes:
        base_ms, changed_ms: mean step of the unchanged and the changed job in each pair of blocks, on the slowest rank.
        skipped: why it does not fit the job or its device.
        failed: why it was not measured to the end.
    """

    change: Change
    base_ms: tuple[Milliseconds, ...] = ()
    changed_ms: tuple[Milliseconds, ...] = ()
    skipped: str | None = None
    failed: str | None = None


class MeasuredTries(msgspec.Struct, frozen=True, kw_only=True):
    """All changes of one run, in the order of the request (`gpudiag/tries/1`)."""

    schema: str = TRIES_SCHEMA
    changes: tuple[ChangeTurns, ...]


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Savings per step of one change: predicted by a finding, and measured.

    Attributes:
        predicted_ms: None without a finding that this change removes, because it would save less than 2 % of the step.
        measured_ms: unchanged minus changed step, mean over pairs of blocks; negative if the change costs time.
        ci95_ms: 95 % interval of `measured_ms`, (low, high).
        base_ms, changed_ms: mean steps of the unchanged and the changed job.
        reason: why it was skipped or failed.
    """

    change: str
    predicted_ms: Milliseconds | None = None
    predicted_low_ms: Milliseconds | None = None
    predicted_high_ms: Milliseconds | None = None
    measured_ms: Difference | None = None
    ci95_ms: tuple[Difference, Difference] | None = None
    base_ms: Milliseconds | None = None
    changed_ms: Milliseconds | None = None
    verdict: TryVerdict
    reason: str = ""
