"""Compare two analyses: the difference of their step times, and its parts at every level.

The eight buckets partition every device window, so the difference of the mean windows is the sum of the differences of
the mean buckets: no time is counted twice and none is lost. The same holds on each rank. Within a bucket, what kernels,
collectives and copies contribute is exclusive (`analysis.Portion`), so the portions sum to the bucket too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from statistics import fmean
from typing import Any

from gpudiag.analysis.comparison.cause import find_cause
from gpudiag.analysis.comparison.changes import bucket_changes, rank_changes, wait_changes
from gpudiag.analysis.comparison.compared_analysis import ComparedAnalysis
from gpudiag.analysis.comparison.run_differences import run_differences
from gpudiag.model.analysis import Analysis, Finding
from gpudiag.model.diff import ComparedRun, Diff, FindingChange, Outcome, RunValidity, StepChange, StepKind
from gpudiag.statistics import mean_of

#: Fewer steps do not show how steps scatter.
FEWEST_STEPS = 3
#: Two findings are the same one if these agree; closer agreement is looked for first, because a run may have several
#: findings of one code (links, ranks).
_SAME: tuple[Callable[[Finding], Any], ...] = (
    lambda finding: (finding.code, finding.cause, finding.ranks),
    lambda finding: (finding.code, finding.cause),
    lambda finding: finding.code,
)


def compare(before: Analysis, after: Analysis) -> Diff:
    """Return the difference `after - before`.

    Raises:
        UnreadableInputError: an analysis has no step to compare, or values out of range.
    """
    old, new = ComparedAnalysis(before), ComparedAnalysis(after)
    steps = _step_changes(old, new)
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
        findings=finding_changes(before.findings, after.findings),
        run_differences=run_differences(old, new),
        validity=(
            *(RunValidity(run="before", code=warning.code, message=warning.message) for warning in before.validity),
            *(RunValidity(run="after", code=warning.code, message=warning.message) for warning in after.validity),
        ),
    )


def _step_changes(old: ComparedAnalysis, new: ComparedAnalysis) -> tuple[StepChange, ...]:
    before, after = old.analysis.steps, new.analysis.steps
    windows = [mean_over_devices([device.step_times_ms for _, device in side.live.values()]) for side in (old, new)]
    changes = [_step_change("profiled", old.step_ms, new.step_ms, *windows)]
    if before.corrected_mean_ms is not None and after.corrected_mean_ms is not None:
        changes.append(
            StepChange(
                kind="corrected",
                before_ms=before.corrected_mean_ms,
                after_ms=after.corrected_mean_ms,
                difference_ms=after.corrected_mean_ms - before.corrected_mean_ms,
                percent=_percent(before.corrected_mean_ms, after.corrected_mean_ms),
                reason="it is simulated, so it has no single steps",
            )
        )
    if before.unprofiled_mean_ms is not None and after.unprofiled_mean_ms is not None:
        times = before.unprofiled_times_ms, after.unprofiled_times_ms
        changes.append(_step_change("unprofiled", before.unprofiled_mean_ms, after.unprofiled_mean_ms, *times))
    return tuple(changes)


def _step_change(
    kind: StepKind, before_ms: float, after_ms: float, before: Sequence[float], after: Sequence[float]
) -> StepChange:
    half = None if min(len(before), len(after)) < FEWEST_STEPS else mean_of(after).minus(mean_of(before)).half_width
    difference = after_ms - before_ms
    return StepChange(
        kind=kind,
        before_ms=before_ms,
        after_ms=after_ms,
        difference_ms=difference,
        percent=_percent(before_ms, after_ms),
        ci95_ms=None if half is None else (difference - half, difference + half),
        reason="" if half is not None else _few(before, after),
    )


def mean_over_devices(times: Sequence[Sequence[float]]) -> list[float]:
    """Return each step's time averaged over the devices, for as many steps as all of them have.

    Ranks of one job end their steps together, so their times are not independent samples: a step counts once.
    """
    return [fmean(step) for step in zip(*times, strict=False)]


def _few(before: Sequence[float], after: Sequence[float]) -> str:
    if not before or not after:
        which = "both runs" if not (before or after) else "the first run" if not before else "the second run"
        return f"the single step times of {which} were not kept"
    return f"{len(before)} and {len(after)} steps; at least {FEWEST_STEPS} of each are needed"


def _percent(before: float, after: float) -> float | None:
    return 100 * (after - before) / before if before > 0 else None


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
    """Return the findings that appeared, disappeared and remained, each in the order of its analysis."""
    old, new = list(before), list(after)
    remained = []
    for same in _SAME:
        for finding in list(old):
            counterpart = next((candidate for candidate in new if same(candidate) == same(finding)), None)
            if counterpart is not None:
                # By identity, because an analysis may have equal findings.
                old = [candidate for candidate in old if candidate is not finding]
                new = [candidate for candidate in new if candidate is not counterpart]
                remained.append(FindingChange(status="remained", before=finding, after=counterpart))
    return (
        *(FindingChange(status="appeared", before=None, after=finding) for finding in new),
        *(FindingChange(status="disappeared", before=finding, after=None) for finding in old),
        *remained,
    )


def _compared(side: ComparedAnalysis) -> ComparedRun:
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
