"""Compare diagnoses with the true costs of faults, measured on unprofiled steps with and without the fault."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from gpudiag.model.analysis import Analysis, Finding, Fix
from gpudiag.model.benchmarks.selftest import (
    Ablation,
    ExpectedFinding,
    FaultCost,
    Found,
    Score,
    SelftestRow,
    StepBlock,
    Verdict,
)
from gpudiag.statistics import mean_of, wilson

#: Accepted difference between found and true cost on GPUs: this share of the true cost, but at least this many ms.
GPU_SHARE, GPU_MS = 0.10, 1.0
#: Accepted difference on CPU processes, whose cores do other work too: this share, but at least this many standard
#: errors.
CPU_SHARE, CPU_ERRORS = 0.25, 3.0
#: A finding counts as an alarm only if it saves at least this share of the step with the fault.
ALARM_SHARE = 0.05
#: Codes of the findings about the clean job's communication and launch overhead.
COMMUNICATION, LAUNCHING = "communication-bound", "launch-bound"
#: A finding about a loss that the clean job has too is a false alarm if (true loss) < this share * (savings that make a
#: finding an alarm).
_LEAST_LOSS_SHARE = 0.5
#: A block's mean leaves out this share of the shortest and of the longest steps, so that a disturbance has no effect.
_TRIMMED = 0.1
#: The score counts costs that are found within these errors: (share of the true cost, least error in ms).
_ACCURACIES = ((0.10, 1.0), (0.25, 2.0))


def ablation_cost(blocks: Sequence[StepBlock]) -> FaultCost:
    """Return the true cost of a fault, computed from alternating blocks with and without the fault.

    The step time of a block is the trimmed mean of its steps, averaged over ranks. The nth block without the fault and
    the nth block with the fault form a pair. The cost is the mean difference over pairs.

    Raises:
        ValueError: there is no pair of blocks.
    """
    clean_ms = [_step_ms(block) for block in blocks if not block.on]
    faulty_ms = [_step_ms(block) for block in blocks if block.on]
    differences = [faulty - clean for clean, faulty in zip(clean_ms, faulty_ms, strict=False)]
    if not differences:
        raise ValueError("no pair of blocks with and without the fault")
    return FaultCost(
        clean_ms=statistics.fmean(clean_ms),
        faulty_ms=statistics.fmean(faulty_ms),
        ms=statistics.fmean(differences),
        standard_error_ms=mean_of(differences).standard_error if len(differences) > 1 else 0.0,
    )


def communication_cost(no_fault: FaultCost, communication_fault: FaultCost) -> FaultCost:
    """Return the cost of communication in the clean job; `clean_ms` of the cost is the step without communication.

    Args:
        no_fault: the cost of the fault "none"; its blocks are the clean job.
        communication_fault: the cost of a fault of communication; its blocks without the fault do not communicate.
    """
    return FaultCost(
        clean_ms=communication_fault.clean_ms,
        faulty_ms=no_fault.clean_ms,
        ms=no_fault.clean_ms - communication_fault.clean_ms,
        standard_error_ms=math.hypot(no_fault.standard_error_ms, communication_fault.standard_error_ms),
    )


def _step_ms(block: StepBlock) -> float:
    return statistics.fmean(trimmed_mean(steps) for steps in block.step_ms)


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest tenth.

    >>> trimmed_mean([1, 2, 3, 4, 5, 6, 7, 8, 9, 1000])
    5.5
    """
    trimmed = int(len(values) * _TRIMMED)
    return statistics.fmean(sorted(values)[trimmed : len(values) - trimmed])


def tolerance_ms(cost: FaultCost, *, device: str, window_error_ms: float, window_ms: float | None = None) -> float:
    """Return the accepted difference between found and true cost in ms per step.

    Args:
        cost: the true cost.
        device: `cuda` or `cpu`.
        window_error_ms: standard error of the mean of the recorded steps, from which the found cost is computed.
        window_ms: mean of the recorded steps. On a CPU, a difference from the unprofiled mean shows that the load of
            the machine has changed, so this difference is accepted too.
    """
    if device == "cuda":
        return max(GPU_SHARE * abs(cost.ms), GPU_MS)
    changed = 0.0 if window_ms is None else abs(window_ms - cost.faulty_ms)
    return max(CPU_SHARE * abs(cost.ms), CPU_ERRORS * math.hypot(cost.standard_error_ms, window_error_ms), changed)


def tolerance_in_words(device: str) -> str:
    """Return the tolerance as a sentence."""
    if device == "cuda":
        return (
            f"found and true cost may differ by {100 * GPU_SHARE:.0f} % or {GPU_MS:g} ms, whichever is more; "
            f"anything else that costs {100 * ALARM_SHARE:.0f} % of the step is a false alarm"
        )
    return (
        f"found and true cost may differ by {100 * CPU_SHARE:.0f} % or {CPU_ERRORS:g} standard errors (of the true "
        f"cost over pairs of blocks and of the recorded steps together) or by as much as recorded and unprofiled steps "
        f"differ, whichever is most; anything else that costs {100 * ALARM_SHARE:.0f} % of the step or that many "
        f"standard errors is a false alarm"
    )


def judge(
    ablation: Ablation,
    expected: ExpectedFinding,
    analysis: Analysis,
    *,
    window_error_ms: float,
    clean_losses: Mapping[str, FaultCost] = {},
    run_dir: str = "",
) -> SelftestRow:
    """Compare the true cost of a fault with the diagnosis. Return a row of the selftest's table.

    Args:
        ablation: the true cost.
        expected: the right diagnosis.
        analysis: the diagnosis.
        window_error_ms: standard error of the mean of the recorded steps.
        clean_losses: the cost of communication and of launch overhead without the fault, by finding code, if measured.
        run_dir: the run directory, relative to the selftest's directory.
    """
    cost = ablation_cost(ablation.blocks)
    tolerance = tolerance_ms(
        cost, device=ablation.device, window_error_ms=window_error_ms, window_ms=analysis.steps.mean_ms
    )
    alarm_ms = ALARM_SHARE * cost.faulty_ms
    if ablation.device == "cpu":
        alarm_ms = max(alarm_ms, CPU_ERRORS * window_error_ms)
    alarms = [finding for finding in analysis.findings if _saves_ms(finding) >= alarm_ms]
    for code, loss in clean_losses.items():  # a loss that the clean job has too is no false alarm
        if code not in expected.codes:
            allowed_ms = loss.ms + tolerance_ms(loss, device=ablation.device, window_error_ms=window_error_ms)
            alarms = [
                finding
                for finding in alarms
                if finding.code != code or not _is_clean_loss(finding, loss, alarm_ms, allowed_ms)
            ]
    first = _leading_alarm(alarms, expected)
    primary = None if first is None else _as_found(first)
    others = _others(analysis, alarms, first, alarm_ms)
    included_ms = _included_ms(primary, expected, clean_losses)
    verdict, why = compare(
        cost, expected, primary, others, tolerance=tolerance, alarm=alarm_ms, included_ms=included_ms
    )
    if verdict == "wrong" and primary is None and _is_below_noise(analysis, expected, cost, alarm_ms):
        verdict, why = "too noisy", ()
    clean_ms = {code: loss.ms for code, loss in clean_losses.items()}
    return SelftestRow(
        workload=ablation.workload,
        fault=ablation.fault.name,
        expected=expected,
        true=cost,
        found=primary,
        others=others,
        exchange_ms=clean_ms.get(COMMUNICATION),
        launching_ms=clean_ms.get(LAUNCHING),
        included_ms=included_ms,
        tolerance_ms=tolerance,
        alarm_ms=alarm_ms,
        verdict=verdict,
        why=why,
        profiled_ms=analysis.steps.mean_ms,
        corrected_ms=analysis.steps.corrected_mean_ms,
        run_dir=run_dir,
    )


def _is_below_noise(analysis: Analysis, expected: ExpectedFinding, cost: FaultCost, alarm_ms: float) -> bool:
    """Return whether a right finding would be an alarm if the recorded steps varied less."""
    least_ms = ALARM_SHARE * cost.faulty_ms
    right = [finding for finding in analysis.findings if finding.code in expected.codes]
    return any(least_ms <= _saves_ms(finding) < alarm_ms for finding in right)


def _others(analysis: Analysis, alarms: Sequence[Finding], first: Finding | None, alarm_ms: float) -> tuple[Found, ...]:
    """Return the other alarms that still save at least `alarm_ms` when the first finding is fixed."""
    saving_afterwards_ms = _saving_after(analysis, alarms[0] if alarms else None)
    return tuple(
        _as_found(finding)
        for finding in alarms
        if finding is not first and not _are_alternatives(finding, first) and saving_afterwards_ms(finding) >= alarm_ms
    )


def _included_ms(primary: Found | None, expected: ExpectedFinding, clean_losses: Mapping[str, FaultCost]) -> float:
    """Return the clean job's loss that fixing the first finding also removes, in ms per step.

    A fix of all launch overhead, or of all communication, also removes the clean job's part. If communication is the
    fault, the true cost already contains the communication of the clean job.
    """
    if primary is None or primary.code not in clean_losses or {primary.code, expected.code} == {COMMUNICATION}:
        return 0.0
    return max(0.0, clean_losses[primary.code].ms)


def compare(
    cost: FaultCost,
    expected: ExpectedFinding,
    primary: Found | None,
    others: tuple[Found, ...],
    *,
    tolerance: float,
    alarm: float,
    included_ms: float = 0.0,
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict, and the reasons if it is `wrong`. A missed fault below alarm or tolerance is `too small`.

    Args:
        cost: the true cost.
        expected: the right diagnosis.
        primary: the leading alarm; None if there is no alarm.
        others: the other alarms.
        tolerance: accepted difference between found and true cost, in ms per step.
        alarm: least savings of an alarm, in ms per step.
        included_ms: the clean job's loss that fixing `primary` also removes.
    """
    false_alarms = tuple(
        f"false alarm: {other.code}, {other.ms:.1f} ms" for other in others if other.code not in expected.codes
    )
    if expected.code is None:
        if primary is None:
            return "right", ()
        return "wrong", (f"false alarm: {primary.code}, {primary.ms:.1f} ms", *false_alarms)
    if primary is None:
        if cost.ms <= max(alarm, tolerance):
            return "too small", ()
        return "wrong", (f"not found: {cost.ms:.1f} ms of {cost.faulty_ms:.1f}",)
    errors = []
    if primary.code not in expected.codes:
        errors.append(f"{primary.code} instead of {expected.code}")
    else:
        if primary.ranks != expected.ranks:
            errors.append(f"ranks {_rank_list(primary.ranks)} instead of {_rank_list(expected.ranks)}")
        causes = expected.causes_of(primary.code)
        if causes and primary.cause not in causes:
            errors.append(f"cause '{primary.cause}' instead of '{causes[0]}'")
        excess_ms = _excess_ms(primary, cost, included_ms)
        if abs(excess_ms) > tolerance:
            errors.append(f"{abs(excess_ms):.1f} ms too {'much' if excess_ms > 0 else 'little'}")
    errors.extend(false_alarms)
    return ("wrong" if errors else "right"), tuple(errors)


def count_scores(rows: Iterable[SelftestRow]) -> tuple[Score, ...]:
    """Count the faults whose code, ranks, cause or amount the diagnosis has right, and the rows with a false alarm."""
    # A fault counts only if it costs more than `alarm_ms` and more than the tolerance.
    rows = tuple(rows)
    faults = [
        row for row in rows if row.expected.code is not None and row.true.ms > max(row.alarm_ms, row.tolerance_ms)
    ]
    diagnoses = [_diagnosis_of_fault(row) for row in faults]
    scores = [
        _score("found", [diagnosis is not None for diagnosis in diagnoses]),
        _score("code first", [row.found is not None and row.found.code in row.expected.codes for row in faults]),
        _score("ranks and cause right", list(map(_has_right_ranks_and_cause, faults, diagnoses))),
    ]
    for share, ms in _ACCURACIES:
        accurate = [
            diagnosis is not None
            and abs(_excess_ms(diagnosis, row.true, row.included_ms)) <= max(share * row.true.ms, ms)
            for row, diagnosis in zip(faults, diagnoses, strict=True)
        ]
        scores.append(_score(f"amount within {100 * share:.0f} % or {ms:g} ms", accurate))
    return (*scores, _score("rows with a false alarm", [_has_false_alarm(row) for row in rows]))


def _diagnosis_of_fault(row: SelftestRow) -> Found | None:
    """Return the first finding with a right code, at any position; None if there is none."""
    findings = [] if row.found is None else [row.found, *row.others]
    return next((finding for finding in findings if finding.code in row.expected.codes), None)


def _has_right_ranks_and_cause(row: SelftestRow, diagnosis: Found | None) -> bool:
    if diagnosis is None or diagnosis.ranks != row.expected.ranks:
        return False
    causes = row.expected.causes_of(diagnosis.code)
    return not causes or diagnosis.cause in causes


def _has_false_alarm(row: SelftestRow) -> bool:
    return any(finding.code not in row.expected.codes for finding in (row.found, *row.others) if finding is not None)


def _score(name: str, right: list[bool]) -> Score:
    low, high = wilson(sum(right), len(right))
    return Score(name=name, right=sum(right), of=len(right), low=low, high=high)


def _excess_ms(primary: Found, cost: FaultCost, included_ms: float) -> float:
    """Return how far the found cost is above (or, negative, below) the range `cost.ms` to `cost.ms + included_ms`."""
    return primary.ms - min(max(primary.ms, cost.ms), cost.ms + included_ms)


def _leading_alarm(alarms: Sequence[Finding], expected: ExpectedFinding) -> Finding | None:
    """Return the largest alarm. If one of its alternatives has a right code, return this alternative instead."""
    if not alarms:
        return None
    alternatives = [finding for finding in alarms if finding is alarms[0] or _are_alternatives(finding, alarms[0])]
    return next((finding for finding in alternatives if finding.code in expected.codes), alarms[0])


def _saving_after(analysis: Analysis, first: Finding | None) -> Callable[[Finding], float]:
    """Return a function that returns, for a finding, the ms per step that its fix saves once `first` is fixed.

    The analysis has these savings in its sequence of fixes (`next`). If the sequence does not begin with the first
    finding, the function returns what each fix saves alone.
    """
    fixes = analysis.next
    if first is None or not fixes or not _fixes(fixes[0], first):
        return _saves_ms

    def saving_afterwards_ms(finding: Finding) -> float:
        return next((prior.step_ms - fix.step_ms for prior, fix in pairwise(fixes) if _fixes(fix, finding)), 0.0)

    return saving_afterwards_ms


def _fixes(fix: Fix, finding: Finding) -> bool:
    return (fix.code, fix.ranks, fix.cause) == (finding.code, finding.ranks, finding.cause)


def _are_alternatives(finding: Finding, other: Finding | None) -> bool:
    """Return whether a fix of one finding also removes the other finding."""
    return other is not None and (finding.code in other.instead or other.code in finding.instead)


def _is_clean_loss(finding: Finding, loss: FaultCost, alarm_ms: float, allowed_ms: float) -> bool:
    """Return whether a finding reports a loss that the clean job has too, so that it is no false alarm.

    The finding may report less than this loss, because a fault may hide a part of it.
    """
    return loss.ms >= _LEAST_LOSS_SHARE * alarm_ms and _saves_ms(finding) <= allowed_ms


def _saves_ms(finding: Finding) -> float:
    """Return the ms per step that fixing a finding saves; 0 for `info`."""
    return 0.0 if finding.severity == "info" else finding.recoverable_ms_per_step or 0.0


def _as_found(finding: Finding) -> Found:
    """Return a finding for the table; unknown savings count as 0 ms."""
    return Found(
        code=finding.code,
        ranks=finding.ranks,
        cause=finding.cause,
        ms=finding.recoverable_ms_per_step or 0.0,
        confidence=finding.confidence,
    )


def _rank_list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks)) or "none"
