"""Compare two analyses: find the difference of their step times, its parts, and its cause.

The eight buckets partition every device window. Therefore the differences of the buckets add up to the difference of
the step times, on each device and for means over devices. The portions of a bucket (`analysis.Portion`) do not overlap,
so their differences add up to the difference of the bucket.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import fsum
from statistics import fmean
from typing import Any

import msgspec

from gpudiag.analysis.comparison.changes import (
    ComparedAnalysis,
    bucket_changes,
    line_changes,
    rank_changes,
    wait_changes,
)
from gpudiag.analysis.comparison.run_differences import run_differences
from gpudiag.model.analysis import Analysis, Finding
from gpudiag.model.diff import (
    BucketChange,
    Cause,
    ComparedRun,
    Diff,
    FindingChange,
    Outcome,
    PartChange,
    RankChange,
    RunValidity,
    StepChange,
    StepKind,
    WaitChange,
)
from gpudiag.statistics import mean_of

#: A confidence interval needs this many steps of each run.
FEWEST_STEPS = 3
#: Identities of a finding, the strictest first. Findings of two runs are paired by the first identity that agrees,
#: because a run may have several findings of one code, for different links or ranks.
_IDENTITIES: tuple[Callable[[Finding], Any], ...] = (
    lambda finding: (finding.code, finding.cause, finding.ranks),
    lambda finding: (finding.code, finding.cause),
    lambda finding: finding.code,
)
WAIT = "communication_wait"
#: A straggler can be the cause if waiting changes by at least this share of the difference. With two ranks, waiting
#: changes by at most half of the difference, because it is a mean over devices and only one device waits.
_WAIT_SHARE = 0.4
#: A part with at least this share of a whole is the main part.
_MOST = 0.5


def compare(before: Analysis, after: Analysis) -> Diff:
    """Return the difference `after - before`.

    Raises:
        UnreadableInputError: an analysis has no step to compare, or values out of range.
    """
    old, new = ComparedAnalysis(before), ComparedAnalysis(after)
    steps = _step_changes(old, new)
    # Judge the unprofiled step if its interval is known, else the profiled step. The corrected step has no interval.
    judged = next((step for step in reversed(steps) if step.ci95_ms is not None), steps[0])
    buckets = bucket_changes(old, new)
    ranks = rank_changes(old, new)
    waits = wait_changes(before, after)
    same_devices = old.live.keys() == new.live.keys()
    difference = steps[0].difference_ms
    return Diff(
        before=_compared(old),
        after=_compared(new),
        outcome=_outcome(judged),
        judged=judged.kind,
        steps=steps,
        cause=find_cause(difference, buckets, ranks if same_devices else (), waits),
        buckets=buckets,
        unattributed_ms=fsum([difference, *(-bucket.difference_ms for bucket in buckets)]),
        hidden_communication_ms=(old.hidden_ms, new.hidden_ms),
        parts_reason=_parts_reason(before, after),
        ranks=ranks,
        waits=waits,
        lines=line_changes(before, after),
        findings=finding_changes(before.findings, after.findings),
        run_differences=run_differences(old, new),
        validity=(
            *(RunValidity(run="before", code=warning.code, message=warning.message) for warning in before.validity),
            *(RunValidity(run="after", code=warning.code, message=warning.message) for warning in after.validity),
        ),
    )


def _step_changes(old: ComparedAnalysis, new: ComparedAnalysis) -> tuple[StepChange, ...]:
    """Return the changes of the profiled step and, if both runs have them, of the corrected and unprofiled steps."""
    before, after = old.analysis.steps, new.analysis.steps
    windows = [mean_over_devices([device.step_times_ms for _, device in side.live.values()]) for side in (old, new)]
    changes = [_step_change("profiled", old.step_ms, new.step_ms, *windows)]
    if before.corrected_mean_ms is not None and after.corrected_mean_ms is not None:
        corrected = _step_change("corrected", before.corrected_mean_ms, after.corrected_mean_ms, (), ())
        changes.append(msgspec.structs.replace(corrected, reason="it is simulated, so it has no single steps"))
    if before.unprofiled_mean_ms is not None and after.unprofiled_mean_ms is not None:
        times = before.unprofiled_times_ms, after.unprofiled_times_ms
        changes.append(_step_change("unprofiled", before.unprofiled_mean_ms, after.unprofiled_mean_ms, *times))
    return tuple(changes)


def _step_change(
    kind: StepKind, before_ms: float, after_ms: float, before: Sequence[float], after: Sequence[float]
) -> StepChange:
    """Return the change of a mean step time; its 95 % interval comes from the step times `before` and `after`."""
    half = None if min(len(before), len(after)) < FEWEST_STEPS else mean_of(after).minus(mean_of(before)).half_width
    difference = after_ms - before_ms
    return StepChange(
        kind=kind,
        before_ms=before_ms,
        after_ms=after_ms,
        difference_ms=difference,
        percent=100 * difference / before_ms if before_ms > 0 else None,
        ci95_ms=None if half is None else (difference - half, difference + half),
        reason="" if half is not None else _few(before, after),
    )


def mean_over_devices(times: Sequence[Sequence[float]]) -> list[float]:
    """Return each step's time averaged over the devices, for as many steps as every device has.

    Each step gives one sample, because ranks of one job end their steps together and are not independent.
    """
    return [fmean(step) for step in zip(*times, strict=False)]


def _few(before: Sequence[float], after: Sequence[float]) -> str:
    if not before or not after:
        which = "both runs" if not (before or after) else "the first run" if not before else "the second run"
        return f"the single step times of {which} were not kept"
    return f"{len(before)} and {len(after)} steps; at least {FEWEST_STEPS} of each are needed"


def _outcome(step: StepChange) -> Outcome:
    if step.ci95_ms is None:
        return "cannot-tell"
    low, high = step.ci95_ms
    return "slower" if low > 0 else "faster" if high < 0 else "no-difference"


def _parts_reason(before: Analysis, after: Analysis) -> str:
    lacking = [name for name, analysis in (("first", before), ("second", after)) if not analysis.portions]
    if not lacking:
        return ""
    which = "neither run's analysis" if len(lacking) == 2 else f"the {lacking[0]} run's analysis"
    verb = "says" if len(lacking) == 2 else "does not say"
    return f"{which} {verb} how much kernels and collectives contributed: analyse the traces again"


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[FindingChange, ...]:
    """Return the findings that appeared, disappeared and remained, in the order of their analyses."""
    old, new = list(before), list(after)
    remained = []
    for identity in _IDENTITIES:
        for finding in list(old):
            counterpart = next((candidate for candidate in new if identity(candidate) == identity(finding)), None)
            if counterpart is not None:
                # Compare with `is`, because an analysis may have equal findings.
                old = [candidate for candidate in old if candidate is not finding]
                new = [candidate for candidate in new if candidate is not counterpart]
                remained.append(FindingChange(status="remained", before=finding, after=counterpart))
    return (
        *(FindingChange(status="appeared", before=None, after=finding) for finding in new),
        *(FindingChange(status="disappeared", before=finding, after=None) for finding in old),
        *remained,
    )


def _compared(side: ComparedAnalysis) -> ComparedRun:
    """Return what the comparison states about the run of this side."""
    analysis = side.analysis
    source = analysis.source
    return ComparedRun(
        paths=source.paths,
        title=source.title,
        workload=source.workload,
        strategy=source.strategy,
        framework=analysis.framework,
        world_size=analysis.world_size,
        ranks_present=analysis.ranks_present,
        devices=tuple(device.name or device.device.partition(":")[0] for _, device in side.live.values()),
        batch_size_per_device=source.batch_size_per_device,
        samples_per_s=source.samples_per_s,
        software=source.software,
        steps_analysed=analysis.steps.analysed,
    )


def find_cause(
    difference_ms: float, buckets: Sequence[BucketChange], ranks: Sequence[RankChange], waits: Sequence[WaitChange]
) -> Cause | None:
    """Return the cause of a difference of mean step times; None if no bucket changed in the difference's direction.

    A straggler is the cause if waiting changed by a large share of the difference, mostly waiting for the straggler.
    Otherwise the cause is the bucket that changed most, on all ranks or on the few ranks on which it changed.

    Args:
        difference_ms: difference of the profiled step.
        buckets: changes of all eight buckets.
        ranks: change of every device of both runs; empty if the runs have different devices.
        waits: changes of waits.
    """
    # A change times this sign is positive if it has the direction of the difference.
    sign = 1.0 if difference_ms > 0 else -1.0
    waiting = sign * next(bucket.difference_ms for bucket in buckets if bucket.bucket == WAIT)
    if ranks and waiting > 0 and waiting >= _WAIT_SHARE * abs(difference_ms):
        straggler = _straggler(sign, ranks, waits)
        if straggler is not None:
            return straggler
    most = max(buckets, key=lambda bucket: sign * bucket.difference_ms)
    if difference_ms == 0 or sign * most.difference_ms <= 0:
        return None
    few = _few_ranks(sign, most.bucket, ranks)
    change_ms = fmean(rank.buckets_ms[most.bucket] for rank in few) if few else most.difference_ms
    parts = most.parts if not few else few[0].parts if len(few) == 1 else ()  # several ranks have no common parts
    return Cause(
        bucket=most.bucket,
        ranks=tuple(sorted({rank.rank for rank in few})),
        difference_ms=change_ms,
        part=_main_part(sign, most.bucket, change_ms, parts),
    )


def _straggler(sign: float, ranks: Sequence[RankChange], waits: Sequence[WaitChange]) -> Cause | None:
    """Return the cause on the rank for which waits changed most; None if this is less than half of all waits' change.

    Only changes in the direction `sign` (1 slower, -1 faster) count. The result is also None if no bucket of the rank
    except waiting changed in this direction.
    """
    waits_ms: dict[int, list[float]] = defaultdict(list)  # awaited rank → changes of waits for it
    for wait in waits:
        if sign * wait.difference_ms > 0:
            waits_ms[wait.on_rank].append(wait.difference_ms)
    if not waits_ms:
        return None
    awaited = max(waits_ms, key=lambda rank: (sign * fsum(waits_ms[rank]), -rank))
    total_ms = fsum(abs(ms) for of_rank in waits_ms.values() for ms in of_rank)
    change = next((rank for rank in ranks if rank.rank == awaited), None)
    if change is None or abs(fsum(waits_ms[awaited])) < _MOST * total_ms:
        return None
    work_buckets = (bucket for bucket in change.buckets_ms if bucket != WAIT)
    bucket = max(work_buckets, key=lambda bucket: sign * change.buckets_ms[bucket])
    if sign * change.buckets_ms[bucket] <= 0:
        return None
    return Cause(
        bucket=bucket,
        ranks=(awaited,),
        difference_ms=change.buckets_ms[bucket],
        waiting_ms=fmean(waits_ms[awaited]),
        part=_main_part(sign, bucket, change.buckets_ms[bucket], change.parts),
    )


def _few_ranks(sign: float, bucket: str, ranks: Sequence[RankChange]) -> list[RankChange]:
    """Return the ranks with at least half of the bucket's largest change; empty if these are more than half of `ranks`.

    `sign` is 1 for slower and -1 for faster runs: only changes in this direction count.
    """
    largest = max((sign * rank.buckets_ms[bucket] for rank in ranks), default=0.0)
    changed = [rank for rank in ranks if sign * rank.buckets_ms[bucket] >= _MOST * largest > 0]
    return changed if len(changed) * 2 <= len(ranks) else []


def _main_part(sign: float, bucket: str, change_ms: float, parts: Sequence[PartChange]) -> PartChange | None:
    """Return the portion of the bucket that changed most in the direction `sign`; None below half of `change_ms`."""
    in_bucket = [part for part in parts if part.bucket == bucket]
    most = max(in_bucket, key=lambda part: sign * part.difference_ms, default=None)
    return most if most is not None and sign * most.difference_ms >= _MOST * abs(change_ms) else None
