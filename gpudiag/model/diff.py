"""Define the comparison of two runs' step times. Its JSON is a contract (`gpudiag/diff/1`).

Every difference is `after - before` in milliseconds per step, positive if the second run takes longer. Differences of
parts sum to the difference of the whole, up to floating-point rounding. Buckets are the parts of the step time
(`analysis.BUCKETS`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.analysis import Finding

DIFF_SCHEMA = "gpudiag/diff/1"

StepKind = Literal["profiled", "unprofiled", "corrected"]
RunName = Literal["before", "after"]
Outcome = Literal["slower", "faster", "no-difference", "cannot-tell"]
FindingStatus = Literal["appeared", "disappeared", "remained"]


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs: its analysed files, facts about the job, and numbers of analysed steps and devices."""

    paths: tuple[str, ...] = ()
    title: str = ""
    workload: str | None = None
    strategy: str | None = None
    framework: str
    world_size: int
    ranks_present: tuple[int, ...]
    devices: tuple[str, ...]
    batch_size_per_device: int | None = None
    samples_per_s: float | None = None
    software: dict[str, str] = {}
    steps_analysed: int


class StepChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one kind of mean step time.

    `profiled` is the mean length of the windows in the trace, averaged over the devices. `unprofiled` and `corrected`
    are as in `analysis.Steps`. `ci95_ms` is Welch's 95 % interval of the difference, from the steps of both runs; it is
    None if too few steps are known, which `reason` then states.
    """

    kind: StepKind
    before_ms: float
    after_ms: float
    difference_ms: float
    percent: float | None
    ci95_ms: tuple[float, float] | None = None
    reason: str = ""


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive contributions (see `analysis.Portion`) of a kernel, collective or copy to a bucket in both runs."""

    bucket: str
    name: str
    group: str = ""
    size_bytes: int | None = None
    before_ms: float
    after_ms: float
    difference_ms: float
    before_per_step: float = 0.0
    after_per_step: float = 0.0


class BucketChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a bucket's mean over the devices. `parts` (largest first) and `rest_ms` sum to the difference."""

    bucket: str
    before_ms: float
    after_ms: float
    difference_ms: float
    parts: tuple[PartChange, ...]
    rest_ms: float


class RankChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a device that both runs have. `buckets_ms` and `unattributed_ms` sum to `difference_ms`.

    `parts` has only the parts with the largest differences.
    """

    rank: int
    device: str
    before_ms: float
    after_ms: float
    difference_ms: float
    buckets_ms: dict[str, float]
    unattributed_ms: float
    parts: tuple[PartChange, ...] = ()


class WaitChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of `rank`'s wait for `on_rank`."""

    rank: int
    on_rank: int
    before_ms: float
    after_ms: float
    difference_ms: float


class LineChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a source line's self time, mean over ranks. Lines are matched by file, function and text.

    `line` is the line's number in the second run, or in the first run if the second run does not have the line.
    """

    file: str
    line: int
    function: str
    source: str
    before_ms: float
    after_ms: float
    difference_ms: float


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of one run or of both runs."""

    status: FindingStatus
    before: Finding | None
    after: Finding | None


#: `RunDifference.what` if the models of the runs are unknown and their kernels differ.
OTHER_KERNELS = "compute in kernels that both have"


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference in the setup of the runs, and how it affects the comparison (`message`).

    `same_work` is False if the runs' steps do different work, so that `--fail-on` does not apply.
    """

    what: str
    before: str
    after: str
    message: str
    same_work: bool = True


class RunValidity(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to trust one run's figures less."""

    run: RunName
    code: str
    message: str


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The bucket, ranks and part with most of the difference.

    Attributes:
        bucket: the bucket with most of the difference, over all devices or over `ranks`.
        ranks: the ranks concerned; empty for all.
        difference_ms: the bucket's change: mean over all devices, or over `ranks`.
        waiting_ms: change of the other ranks' mean wait for the straggler in `ranks`; None without a straggler.
        part: the kernel, collective or copy with at least half of the bucket's change; None if no part has so much.
    """

    bucket: str
    ranks: tuple[int, ...] = ()
    difference_ms: float
    waiting_ms: float | None = None
    part: PartChange | None = None


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two analyses.

    Attributes:
        outcome: `slower` or `faster` if the judged step time changed by more than its noise, `no-difference` if it
            changed by less, `cannot-tell` if the noise is unknown.
        judged: the kind of step time to which `outcome` and `--fail-on` refer. It is `unprofiled` if
            the interval of its change is known, else `profiled`.
        steps: changes by kind of step time: `profiled` first, then the other kinds that both runs have.
        buckets: changes of the eight buckets; with `unattributed_ms` they sum to the profiled difference.
        unattributed_ms: 0 unless the buckets of an analysis do not sum to its step, as in edited files.
        lines: changes of source lines, largest difference first; empty unless both runs have lines.
        parts_reason: the reason why the buckets have no parts; "" if they have parts.
    """

    schema: str = DIFF_SCHEMA
    before: ComparedRun
    after: ComparedRun
    outcome: Outcome
    judged: StepKind
    steps: tuple[StepChange, ...]
    cause: Cause | None
    buckets: tuple[BucketChange, ...]
    unattributed_ms: float
    hidden_communication_ms: tuple[float, float]
    parts_reason: str
    ranks: tuple[RankChange, ...]
    waits: tuple[WaitChange, ...]
    lines: tuple[LineChange, ...] = ()
    findings: tuple[FindingChange, ...]
    run_differences: tuple[RunDifference, ...] = msgspec.field(name="unlike")
    validity: tuple[RunValidity, ...]

    def step(self, kind: StepKind) -> StepChange:
        """Return the change of this kind of step time, which must be among `steps`."""
        return next(step for step in self.steps if step.kind == kind)

    @property
    def same_work(self) -> bool:
        """Return whether the steps of both runs do the same work, as far as known."""
        return all(difference.same_work for difference in self.run_differences)
