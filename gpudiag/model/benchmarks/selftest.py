"""The selftest's nouns: what the training processes are told, what they measured, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.job import MemoryFormat, Precision
from gpudiag.model.quantities import Count, Devices, Difference, Milliseconds, Ordinal, Rate, Seconds

SELFTEST_SCHEMA = "gpudiag/selftest/1"
ABLATION_SCHEMA = "gpudiag/ablation/1"
FAILURE_SCHEMA = "gpudiag/selftest-failure/1"

#: Within a fault's run directory, what it costs.
ABLATION_FILE = "ablation.json"
#: In its place where a fault could not be put in.
FAILURE_FILE = "failed.json"
#: Name and directory of what the clean job's own exchange costs.
CLEAN_COMMUNICATION = "clean-exchange"
SELFTEST_FILE = "selftest.json"

Verdict = Literal["right", "wrong", "too small"]


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One fault to put in.

    Attributes:
        name: names its run directory.
        kind: which fault it is, as `CatalogueEntry.kind` says.
        amount: its size as a share of the clean step.
        ranks: the ranks that have it; empty for all.
        marked: the profiled steps go through `gpudiag.profile`'s marks; otherwise the profiler is all there is.
        job: a whole job of its own. What it loses to its own host is measured too.
    """

    name: str
    kind: str
    amount: Difference = 0.0
    ranks: tuple[Ordinal, ...] = ()
    marked: bool = False
    job: bool = False


class SelftestPlan(msgspec.Struct, frozen=True, kw_only=True, tag="selftest"):
    """What one launch goes through, one fault after the other.

    Attributes:
        workload: what is trained.
        pairs: blocks with the fault, and as many without.
        block_ms: how long a block lasts at the clean step time, about.
        least_steps: steps of a block at least.
        active: recorded steps.
        warm_up_s: how long to train before anything is timed.
        background: what the clean job costs by itself, measured as a fault is, but neither recorded nor judged.
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


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps, all with the fault or all without; `step_ms[rank][step]`, in milliseconds."""

    on: bool
    step_ms: tuple[tuple[Milliseconds, ...], ...]


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault really costs: blocks of steps with it and without it, in turn, none of them profiled.

    `amount_ms` is what the fault was sized to (time late, time of extra work); what it costs shows in the blocks. Those
    of a whole job are it with its exchange and without; `held` are it as it is, and with each step's work launched
    before the device begins it: the difference is what the job loses to its host's launching.
    """

    schema: str = ABLATION_SCHEMA
    fault: FaultPlan
    workload: str
    device: Literal["cuda", "cpu"]
    device_name: str
    world_size: Devices
    amount_ms: Difference
    blocks: tuple[Block, ...]
    held: tuple[Block, ...] = ()


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The true cost per step: faulty minus clean, in milliseconds, and its standard error over pairs of blocks."""

    clean_ms: Milliseconds
    faulty_ms: Milliseconds
    ms: Difference
    standard_error_ms: Milliseconds


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the diagnosis should say; no code for a clean run. `causes` lists those that are right, empty for any.

    `or_else` are other findings that are as right, each with its causes: what is done about them is the same, or both
    are true.
    """

    code: str | None
    ranks: tuple[Ordinal, ...]
    causes: tuple[str, ...] = ()
    or_else: dict[str, tuple[str, ...]] = {}

    @property
    def codes(self) -> frozenset[str]:
        """Every code that is right; empty for a clean run."""
        return frozenset() if self.code is None else frozenset({self.code, *self.or_else})

    def causes_of(self, code: str) -> tuple[str, ...]:
        """The causes that a finding of this code, which is right, may have; empty for any."""
        return self.causes if code == self.code else self.or_else.get(code, ())


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, in short."""

    code: str
    ranks: tuple[Ordinal, ...]
    cause: str | None
    ms: Difference
    confidence: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: the truth beside what was found.

    Attributes:
        found: the finding worth most that asks for action; None where there was none.
        others: what else was found that is worth more than the alarm level once larger causes are gone.
        exchange_ms: what exchanging the gradients costs the clean job, by ablation; None where that was not measured. A
            finding of that much is no false alarm.
        launching_ms: likewise what it loses because its host launches no faster.
        included_ms: of these, what removing the cause that was found gains too: the found amount may have it in it.
        tolerance_ms: by how much found and true cost may differ; for a clean run the level of an alarm.
        verdict: `too small` where the fault costs less than the tolerance or the alarm level here, so that nothing has
            to be found; it must still raise no other alarm.
        why: what is wrong, one line each; empty for a right row.
        run_dir: relative to the output directory.
    """

    workload: str
    fault: str
    expected: Expected
    true: Cost
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


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that could not be put in, though it should have been, and what went wrong."""

    schema: str = FAILURE_SCHEMA
    fault: str
    why: str


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that could not be put in here, and why; `failed` where it was tried."""

    fault: str
    why: str
    failed: bool = False


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows of those that can show it are right in one respect, and the share's 95 % Wilson interval."""

    name: str
    right: Count
    of: Count
    low: Rate
    high: Rate


class Selftest(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `gpudiag selftest`; its JSON is a contract (`gpudiag/selftest/1`)."""

    schema: str = SELFTEST_SCHEMA
    device: Literal["cuda", "cpu"]
    device_name: str
    world_size: Devices
    tolerance: str
    """The tolerance in words."""
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()
    scores: tuple[Score, ...] = ()
    software: dict[str, str] = {}

    @property
    def passed(self) -> bool:
        """Whether there are rows, none of them is wrong, and nothing failed."""
        failed = any(one.failed for one in self.left_out)
        return bool(self.rows) and not failed and all(row.verdict != "wrong" for row in self.rows)
