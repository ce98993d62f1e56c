"""Define the selftest's plan for training processes, their measurements, and the results."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.job import MemoryFormat, Precision
from gpudiag.model.quantities import Count, Devices, Difference, Milliseconds, Ordinal, Rate, Seconds

SELFTEST_SCHEMA = "gpudiag/selftest/1"
ABLATION_SCHEMA = "gpudiag/ablation/1"
FAILURE_SCHEMA = "gpudiag/selftest-failure/1"

#: File in a fault's run directory with the cost of the fault.
ABLATION_FILE = "ablation.json"
#: File that is written instead of `ABLATION_FILE` if a fault could not be injected.
FAILURE_FILE = "failed.json"
#: Name of the measurement of the clean job's communication cost, and of its directory.
CLEAN_COMMUNICATION = "clean-exchange"
SELFTEST_FILE = "selftest.json"

Verdict = Literal["right", "wrong", "too small", "too noisy"]


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A fault to inject.

    Attributes:
        name: name of the fault's run directory.
        kind: kind of fault, as in `CatalogueEntry.kind`.
        amount: size of the fault as a share of the clean step.
        ranks: the ranks that have the fault; empty for all.
        marked: mark the profiled steps through `gpudiag.profile`; otherwise only the profiler runs.
        job: True for a whole job instead of a fault; the cost of its communication and launches is measured.
    """

    name: str
    kind: str
    amount: Difference = 0.0
    ranks: tuple[Ordinal, ...] = ()
    marked: bool = False
    job: bool = False


class SelftestPlan(msgspec.Struct, frozen=True, kw_only=True, tag="selftest"):
    """The faults of one launch, injected one after the other.

    Attributes:
        pairs: number of blocks with the fault, which is also the number of blocks without the fault.
        block_ms: approximate duration of a block at the clean step time.
        least_steps: minimum number of steps of a block.
        active: number of recorded steps.
        warm_up_s: duration of training before the first measurement.
        background: costs of the clean job itself, measured like faults but neither recorded nor judged.
    """

    workload: str
    device: Literal["cuda", "cpu"]
    batch_size: Count
    precision: Precision
    memory_format: MemoryFormat
    faults: tuple[FaultPlan, ...]
    pairs: Count
    block_ms: Milliseconds
    least_steps: Count
    active: Count
    warm_up_s: Seconds
    background: tuple[FaultPlan, ...] = ()


class StepBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps, all with the fault or all without it. Times are `step_ms[rank][step]`."""

    on: bool
    step_ms: tuple[tuple[Milliseconds, ...], ...]


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """Measurement of one fault's true cost: alternating blocks of unprofiled steps with and without the fault.

    For a whole job, `blocks` compare the job with and without communication. `held` compare the unchanged job with
    steps whose work is launched before the device begins; this difference is the launch overhead. `amount_ms` is the
    intended size of the fault (delay, time of extra work).
    """

    schema: str = ABLATION_SCHEMA
    fault: FaultPlan
    workload: str
    device: Literal["cuda", "cpu"]
    device_name: str
    world_size: Devices
    amount_ms: Difference
    blocks: tuple[StepBlock, ...]
    held: tuple[StepBlock, ...] = ()


class FaultCost(msgspec.Struct, frozen=True, kw_only=True):
    """The true cost per step (`ms`: faulty minus clean), and its standard error over pairs of blocks."""

    clean_ms: Milliseconds
    faulty_ms: Milliseconds
    ms: Difference
    standard_error_ms: Milliseconds


class ExpectedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The finding that should be reported. A clean run has no `code`. If `causes` is empty, any cause is right.

    `or_else` maps codes of other findings that are right (with the same remedy, or also true) to their right causes.
    """

    code: str | None
    ranks: tuple[Ordinal, ...]
    causes: tuple[str, ...] = ()
    or_else: dict[str, tuple[str, ...]] = {}

    @property
    def codes(self) -> frozenset[str]:
        """Return all right codes; none for a clean run."""
        return frozenset() if self.code is None else frozenset({self.code, *self.or_else})

    def causes_of(self, code: str) -> tuple[str, ...]:
        """Return the right causes of a right code; empty if any cause is right."""
        return self.causes if code == self.code else self.or_else.get(code, ())


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The main fields of a finding."""

    code: str
    ranks: tuple[Ordinal, ...]
    cause: str | None
    ms: Difference
    confidence: str


class SelftestRow(msgspec.Struct, frozen=True, kw_only=True):
    """A fault's true cost and the reported finding.

    Attributes:
        found: the finding with the largest savings, or a right alternative to it; None if no finding saves `alarm_ms`.
        others: other findings that save at least `alarm_ms` after larger causes are removed.
        exchange_ms: cost of the clean job's communication, by ablation; None if not measured. A finding of this size is
            not a false alarm.
        launching_ms: launch overhead of the clean job, by ablation; None if not measured.
        included_ms: part of `exchange_ms` and `launching_ms` that removing the found cause saves too. The savings of
            the finding may include this share.
        tolerance_ms: allowed difference between the found savings and the true cost; for a clean run, `alarm_ms`.
        alarm_ms: savings from which a finding of something else than the fault counts as a false alarm.
        verdict: `too small` if the fault costs less than `tolerance_ms` or `alarm_ms`, so that no finding is required.
            A false alarm is still an error. `too noisy` if the right finding was ignored, because it saves less than
            the variation of the recorded steps.
        why: errors of the row, one line each; empty for a right row.
        run_dir: run directory, relative to the output directory.
    """

    workload: str
    fault: str
    expected: ExpectedFinding
    true: FaultCost
    found: Found | None
    others: tuple[Found, ...] = ()
    exchange_ms: Difference | None = None
    launching_ms: Difference | None = None
    included_ms: Difference = 0.0
    tolerance_ms: Difference
    alarm_ms: Difference
    verdict: Verdict
    why: tuple[str, ...] = ()
    profiled_ms: Milliseconds | None = None
    corrected_ms: Difference | None = None
    run_dir: str = ""


class FaultFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that should have been injected but could not, and the reason."""

    schema: str = FAILURE_SCHEMA
    fault: str
    why: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that could not be injected here, and the reason. `failed` is True if the injection was tried."""

    fault: str
    why: str
    failed: bool = False


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Number of right rows among the rows that test one aspect, and the 95 % Wilson interval of the share."""

    name: str
    right: Count
    of: Count
    low: Rate
    high: Rate


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gpudiag selftest`, a JSON contract (`gpudiag/selftest/1`). `tolerance` is in words."""

    schema: str = SELFTEST_SCHEMA
    device: Literal["cuda", "cpu"]
    device_name: str
    world_size: Devices
    tolerance: str
    rows: tuple[SelftestRow, ...]
    left_out: tuple[LeftOut, ...] = ()
    scores: tuple[Score, ...] = ()
    software: dict[str, str] = {}

    @property
    def passed(self) -> bool:
        """Return whether there are rows, no row is wrong, and nothing failed."""
        failed = any(fault.failed for fault in self.left_out)
        return bool(self.rows) and not failed and all(row.verdict != "wrong" for row in self.rows)
