"""Define tried changes. A changed job and the unchanged job are trained in turns to measure the savings."""

from __future__ import annotations

import msgspec

from gpudiag.model.job import Change, Job
from gpudiag.model.quantities import Milliseconds

TRIES_SCHEMA = "gpudiag/tries/1"
#: Number of pairs of blocks. In each pair, one block trains the unchanged job and one the changed job.
PAIRS = 8


class TriesPlan(msgspec.Struct, frozen=True, kw_only=True, tag="tries"):
    """The changed jobs in the order of measuring. `LaunchRequest.job` is the unchanged job."""

    jobs: tuple[Job, ...]


class ChangeTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one change.

    Attributes:
        base_ms, changed_ms: mean step of the unchanged and the changed job in each pair of blocks, on the slowest rank.
        skipped: reason why the change does not fit the job or its device.
        failed: reason why the change was not measured to the end.
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
