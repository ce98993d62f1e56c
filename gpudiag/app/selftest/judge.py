"""Truth beside verdict: pure functions from what was measured to right or wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from gpudiag.model.analysis import Analysis, Finding, Fix
from gpudiag.model.benchmarks.selftest import (
    Ablation,
    ExpectedFinding,
    FaultCost,
    Found,
    SelftestRow,
    StepBlock,
    Verdict,
)
from gpudiag.statistics import mean_of

#: On GPUs: found and true cost may differ by this share of the true cost, or by this many ms, whichever is more.
GPU_SHARE, GPU_MS = 0.10, 1.0
#: On CPU processes, whose cores are shared with everything else: by this share, or by this many standard errors.
CPU_SHARE, CPU_ERRORS = 0.25, 3.0
#: A finding worth less than this share of the step is no alarm.
ALARM_SHARE = 0.05
#: What the findings about a job's own exchange and its own launching are called; from this share of an alarm's level
#: on, what these cost may be found.
COMMUNICATION, LAUNCHING = "communication-bound", "launch-bound"
_NEARLY = 0.5
#: Of each block's steps this share is left out at either end, so that one hiccup of the machine is no cost.
_TRIMMED = 0.1


def cost_of(blocks: Sequence[StepBlock]) -> FaultCost:
    """The true cost, from blocks with and without the fault by turns.

    The step time of a block is the trimmed mean of its steps, averaged over ranks. Neighbouring blocks of either kind
    make a pair; the cost is the mean of the pairs' differences, and its standard error is of that mean.

    Raises:
        ValueError: there is no pair.
    """
    off = [_step_ms(block) for block in blocks if not block.on]
    on = [_step_ms(block) for block in blocks if block.on]
    differences = [b - a for a, b in zip(off, on, strict=False)]
    if not differences:
        raise ValueError("no pair of blocks with and without the fault")
    return FaultCost(
        clean_ms=statistics.fmean(off),
        faulty_ms=statistics.fmean(on),
        ms=statistics.fmean(differences),
        standard_error_ms=mean_of(differences).standard_error if len(differences) > 1 else 0.0,
    )


def communication_of(clean: FaultCost, apart: FaultCost) -> FaultCost:
    """What exchanging the gradients costs the clean job, from two faults' blocks without them.

    Args:
        clean: of the fault that is none.
        apart: of a fault of the exchange, in whose blocks without it nothing is exchanged.
    """
    return FaultCost(
        clean_ms=apart.clean_ms,
        faulty_ms=clean.clean_ms,
        ms=clean.clean_ms - apart.clean_ms,
        standard_error_ms=math.hypot(clean.standard_error_ms, apart.standard_error_ms),
    )


def _step_ms(block: StepBlock) -> float:
    return statistics.fmean(trimmed_mean(steps) for steps in block.step_ms)


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest tenth.

    >>> trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000])
    5.5
    """
    out = int(len(values) * _TRIMMED)
    return statistics.fmean(sorted(values)[out : len(values) - out])


def tolerance_ms(cost: FaultCost, *, device: str, window_error_ms: float, window_ms: float | None = None) -> float:
    """By how much the found cost may differ from the true one.

    Args:
        cost: the true cost.
        device: `cuda` or `cpu`.
        window_error_ms: standard error of the mean of the recorded steps, from which the found cost comes.
        window_ms: their mean. On a CPU that differs from the mean of the timed ones when the machine has changed.
    """
    if device == "cuda":
        return max(GPU_SHARE * abs(cost.ms), GPU_MS)
    changed = 0.0 if window_ms is None else abs(window_ms - cost.faulty_ms)
    return max(CPU_SHARE * abs(cost.ms), CPU_ERRORS * math.hypot(cost.standard_error_ms, window_error_ms), changed)


def tolerance_in_words(device: str) -> str:
    """The tolerance, for people."""
    if device == "cuda":
        return (
            f"found and true cost may differ by {100 * GPU_SHARE:.0f} % or {GPU_MS:g} ms, whichever is more; "
            f"anything else that costs {100 * ALARM_SHARE:.0f} % of the step is a false alarm"
        )
    return (
        f"found and true cost may differ by {100 * CPU_SHARE:.0f} % or {CPU_ERRORS:g} standard errors (of the true "
        f"cost over pairs of blocks and of the recorded steps together) or by as much as recorded and timed steps "
        f"differ, whichever is most; anything else that costs {100 * ALARM_SHARE:.0f} % of the step or that many "
        f"standard errors is a false alarm"
    )


def judge(
    ablation: Ablation,
    expected: ExpectedFinding,
    analysis: Analysis,
    *,
    window_error_ms: float,
    own: Mapping[str, FaultCost] = {},
    run_dir: str = "",
) -> SelftestRow:
    """One row of the table.

    Args:
        ablation: what the fault costs.
        expected: what should be found.
        analysis: what was found.
        window_error_ms: standard error of the mean of the recorded steps.
        own: what the job without the fault loses to its own exchange and launching, by the finding that would say so,
            where that was measured.
        run_dir: where it was recorded.
    """
    cost = cost_of(ablation.blocks)
    tolerance = tolerance_ms(
        cost, device=ablation.device, window_error_ms=window_error_ms, window_ms=analysis.steps.mean_ms
    )
    alarm = ALARM_SHARE * cost.faulty_ms
    if ablation.device == "cpu":
        alarm = max(alarm, CPU_ERRORS * window_error_ms)
    alarms = [finding for finding in analysis.findings if _saves_ms(finding) >= alarm]
    for code, loss in own.items():
        if code not in expected.codes:
            allowed = tolerance_ms(loss, device=ablation.device, window_error_ms=window_error_ms)
            alarms = [one for one in alarms if one.code != code or not _is_own(one, loss, alarm, allowed)]
    first = _first(alarms, expected)
    found = None if first is None else _found(first)
    left = _left_ms(analysis, alarms[0] if alarms else None)
    others = tuple(
        _found(finding)
        for finding in alarms
        if finding is not first and not _alike(finding, first) and left(finding) >= alarm
    )
    # What takes all launching away takes the job's own away too; so does the exchange, unless it is what was put in.
    included = 0.0
    if found is not None and found.code in own and {found.code, expected.code} != {COMMUNICATION}:
        included = max(0.0, own[found.code].ms)
    verdict, why = compare(cost, expected, found, others, tolerance=tolerance, alarm=alarm, included=included)
    return SelftestRow(
        workload=ablation.workload,
        fault=ablation.fault.name,
        expected=expected,
        true=cost,
        found=found,
        others=others,
        exchange_ms=own[COMMUNICATION].ms if COMMUNICATION in own else None,
        launching_ms=own[LAUNCHING].ms if LAUNCHING in own else None,
        included_ms=included,
        tolerance_ms=tolerance,
        alarm_ms=alarm,
        verdict=verdict,
        why=why,
        profiled_ms=analysis.steps.mean_ms,
        corrected_ms=analysis.steps.corrected_mean_ms,
        run_dir=run_dir,
    )


def compare(
    cost: FaultCost,
    expected: ExpectedFinding,
    found: Found | None,
    others: tuple[Found, ...],
    *,
    tolerance: float,
    alarm: float,
    included: float = 0.0,
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and, where it is `wrong`, why.

    A fault that costs no more than an alarm's level need not be found, but where it is, it counts as found. What the
    job loses anyway may be `included` in what was found.
    """
    false_alarms = tuple(
        f"false alarm: {other.code}, {other.ms:.1f} ms" for other in others if other.code not in expected.codes
    )
    if expected.code is None:
        if found is None:
            return "right", ()
        return "wrong", (f"false alarm: {found.code}, {found.ms:.1f} ms", *false_alarms)
    if found is None:
        if cost.ms <= max(alarm, tolerance):
            return "too small", ()
        return "wrong", (f"not found: {cost.ms:.1f} ms of {cost.faulty_ms:.1f}",)
    why = []
    if found.code not in expected.codes:
        why.append(f"{found.code} instead of {expected.code}")
    else:
        if found.ranks != expected.ranks:
            why.append(f"ranks {_list(found.ranks)} instead of {_list(expected.ranks)}")
        causes = expected.causes_of(found.code)
        if causes and found.cause not in causes:
            why.append(f"cause '{found.cause}' instead of '{causes[0]}'")
        off = off_ms(found, cost, included)
        if abs(off) > tolerance:
            why.append(f"{abs(off):.1f} ms too {'much' if off > 0 else 'little'}")
    why.extend(false_alarms)
    return ("wrong" if why else "right"), tuple(why)


def off_ms(found: Found, cost: FaultCost, included: float) -> float:
    """By how much too much was found; negative for too little. The truth may have what is `included` in it or not."""
    return found.ms - min(max(found.ms, cost.ms), cost.ms + included)


def _first(alarms: Sequence[Finding], expected: ExpectedFinding) -> Finding | None:
    """What was found first: the largest, or what is right among those that it names as equal alternatives."""
    if not alarms:
        return None
    alike = [finding for finding in alarms if finding is alarms[0] or _alike(finding, alarms[0])]
    return next((finding for finding in alike if finding.code in expected.codes), alarms[0])


def _left_ms(analysis: Analysis, first: Finding | None) -> Callable[[Finding], float]:
    """What a finding still saves of a step, in ms, once the one that is said first is fixed.

    That is what the path of fixes says. Without one that begins with the first, it is what the finding saves alone.
    """
    path = analysis.next
    if first is None or not path or not _is_of(path[0], first):
        return _saves_ms
    later = list(pairwise(path))

    def left(finding: Finding) -> float:
        return next((before.step_ms - fix.step_ms for before, fix in later if _is_of(fix, finding)), 0.0)

    return left


def _is_of(fix: Fix, finding: Finding) -> bool:
    return (fix.code, fix.ranks, fix.cause) == (finding.code, finding.ranks, finding.cause)


def _alike(one: Finding, other: Finding | None) -> bool:
    """Whether removing either suffices."""
    return other is not None and (one.code in other.instead or other.code in one.instead)


def _is_own(finding: Finding, loss: FaultCost, alarm: float, tolerance: float) -> bool:
    """Whether a finding says what the job loses anyway, and that is large enough to say: then it is no false alarm.

    Beside a fault that may be less than in the clean job, as the fault may hide it, but not more.
    """
    return loss.ms >= _NEARLY * alarm and _saves_ms(finding) <= loss.ms + tolerance


def _saves_ms(finding: Finding) -> float:
    """What fixing a finding saves of a step, in ms; nothing for `info`."""
    return 0.0 if finding.severity == "info" else finding.recoverable_ms_per_step or 0.0


def _found(finding: Finding) -> Found:
    return Found(
        code=finding.code,
        ranks=finding.ranks,
        cause=finding.cause,
        ms=finding.recoverable_ms_per_step or 0.0,
        confidence=finding.confidence,
    )


def _list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) or "none"
