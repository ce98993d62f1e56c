"""Raise the confidence of findings that unprofiled steps confirm, because these need no estimate of overhead."""

from __future__ import annotations

import statistics

import msgspec

from gpudiag.analysis.diagnosis.calibration import SAME_AMOUNT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.unprofiled_steps import exposed_input_ms, later_input_ms
from gpudiag.model.analysis import UNTRUSTED_CODES, Finding
from gpudiag.statistics import mean_of


class _Wait(msgspec.Struct, frozen=True):
    """Mean wait per step and half its 95 % interval, in ms."""

    value: float
    half_width: float


def settled(case: Case, finding: Finding) -> Finding:
    """Return the finding with high confidence if the unprofiled steps show the same wait for input.

    The waits are the same if the unprofiled wait differs from the savings by at most a quarter of the savings, and if
    half its 95 % interval is at most that quarter.
    """
    saved = finding.recoverable_ms_per_step
    wait = _unprofiled_wait_ms(case, finding)
    untrusted = UNTRUSTED_CODES & {validity.code for validity in case.timeline.validity}
    if saved is None or wait is None or untrusted:
        return finding
    if abs(wait.value - saved) > SAME_AMOUNT * saved or wait.half_width > SAME_AMOUNT * saved:
        return finding
    evidence = {**finding.evidence, "input_wait_ms_without_profiling": wait.value}
    return msgspec.structs.replace(finding, confidence="high", evidence=evidence)


def _unprofiled_wait_ms(case: Case, finding: Finding) -> _Wait | None:
    """Return the finding's wait for input in unprofiled steps; None if unknown or for other findings."""
    if case.run is None or len(case.run.ranks) == 0:
        return None
    waits = {rank.rank: steps for rank in case.run.ranks if len(steps := exposed_input_ms(rank)) > 1}
    if finding.code == "straggler" and finding.cause == "input":
        half_widths = [mean_of(waits[rank], as_measured=True).half_width for rank in finding.ranks if rank in waits]
        return _Wait(later_input_ms(case.run, finding.ranks), max(half_widths)) if half_widths else None
    if finding.code != "input-bound" or not waits:
        return None
    typical = sorted(waits, key=lambda rank: statistics.fmean(waits[rank]))[(len(waits) - 1) // 2]
    mean = mean_of(waits[typical], as_measured=True)
    return _Wait(mean.value, mean.half_width)
