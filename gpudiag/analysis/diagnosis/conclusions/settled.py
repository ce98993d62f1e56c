"""Raise the confidence of findings that unprofiled steps confirm: these need no estimate of the profiler's cost."""

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
    """Return the finding with high confidence where the unprofiled steps show the same wait for input.

    They are many, and unprofiled. The wait is the same when it is within a quarter of what the finding saves, and
    when it varies between these steps by less than that.
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
    """Return the wait that the finding is about as the unprofiled steps show it; None where they do not."""
    if case.run is None or len(case.run.ranks) == 0:
        return None
    waits = {rank.rank: steps for rank in case.run.ranks if len(steps := exposed_input_ms(rank)) > 1}
    if finding.code == "straggler" and finding.cause == "input":
        late = [mean_of(waits[rank], as_measured=True).half_width for rank in finding.ranks if rank in waits]
        return _Wait(later_input_ms(case.run, finding.ranks), max(late)) if late else None
    if finding.code != "input-bound" or not waits:
        return None
    level = sorted(waits, key=lambda rank: statistics.fmean(waits[rank]))[(len(waits) - 1) // 2]
    mean = mean_of(waits[level], as_measured=True)
    return _Wait(mean.value, mean.half_width)
