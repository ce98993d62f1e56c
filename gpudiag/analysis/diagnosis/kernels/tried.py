"""Compare the measured savings of tried changes with the savings that findings predict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from gpudiag.analysis.diagnosis.kernels.causes import CauseName
from gpudiag.analysis.diagnosis.kernels.slow_compute import COMPILED
from gpudiag.model.analysis import Finding
from gpudiag.model.benchmarks.tries import ChangeTurns, MeasuredTries
from gpudiag.model.job import Change, TriedChange, TryVerdict
from gpudiag.statistics import student_t

#: Change → the causes of `slow-compute` that the change removes, the main cause first.
_CAUSES: dict[Change, tuple[CauseName, ...]] = {
    "tf32": ("fp32-matmul",),
    "channels-last": ("layout-conversion",),
    "fused": ("unfused-optimizer",),
    "sdpa": ("eager-attention",),
    "compile": COMPILED,
}


def tried_changes(measured: MeasuredTries, findings: Sequence[Finding]) -> tuple[TriedChange, ...]:
    """Return predicted and measured savings of each change."""
    return tuple(_row(turns, findings) for turns in measured.changes)


def _row(turns: ChangeTurns, findings: Sequence[Finding]) -> TriedChange:
    """Return the predicted savings of one change and, unless it was skipped or failed, the measured savings."""
    row = _predicted(turns.change, findings)
    pairs = list(zip(turns.base_ms, turns.changed_ms, strict=False))
    if turns.skipped is not None:
        return msgspec.structs.replace(row, verdict="skipped", reason=turns.skipped)
    if turns.failed is not None or len(pairs) < 2:
        reason = turns.failed or "fewer than two pairs of blocks ended"
        return msgspec.structs.replace(row, verdict="failed", reason=reason)
    differences = [base - changed for base, changed in pairs]
    saved_ms = statistics.fmean(differences)
    # Blocks with and without the change alternate, so that slow phases of the machine affect both alike.
    half_ms = student_t(len(pairs) - 1) * statistics.stdev(differences) / math.sqrt(len(pairs))
    return msgspec.structs.replace(
        row,
        measured_ms=saved_ms,
        ci95_ms=(saved_ms - half_ms, saved_ms + half_ms),  # the 95 % interval of `saved_ms`
        base_ms=statistics.fmean(base for base, _ in pairs),
        changed_ms=statistics.fmean(changed for _, changed in pairs),
        verdict=_verdict(saved_ms - half_ms, saved_ms + half_ms, row),
    )


def _predicted(change: Change, findings: Sequence[Finding]) -> TriedChange:
    """Return the change with the savings that the findings about its causes predict together, or without savings.

    The verdict is a placeholder. For `tf32`, findings that propose another precision do not count. For `compile`, the
    sum is limited to the simulated savings of all causes together; the low and the high sum are scaled by the same
    factor.
    """
    removed = [
        finding
        for finding in findings
        if finding.code == "slow-compute" and finding.cause in _CAUSES[change]
        if change != "tf32" or finding.evidence.get("precision", change) == change
    ]
    savings = [interval for finding in removed if (interval := _savings(finding)) is not None]
    if not savings:
        return TriedChange(change=change, verdict="failed")
    saves, low, high = (sum(values) for values in zip(*savings, strict=True))
    together = removed[0].evidence.get("savings_ms_compiled")
    if change == "compile" and isinstance(together, float) and 0 < together < saves:
        saves, low, high = (value * together / saves for value in (saves, low, high))
    return TriedChange(
        change=change, predicted_ms=saves, predicted_low_ms=low, predicted_high_ms=high, verdict="failed"
    )


def _savings(finding: Finding) -> tuple[float, float, float] | None:
    """Return the expected, low and high savings of a finding in ms per step; None if it states none."""
    saves = finding.recoverable_ms_per_step
    low, high = (finding.evidence.get(f"savings_ms_{end}") for end in ("low", "high"))
    if isinstance(saves, float) and isinstance(low, float) and isinstance(high, float):
        return saves, min(low, saves), max(high, saves)
    return None


def _verdict(low: float, high: float, row: TriedChange) -> TryVerdict:
    """Compare the interval of the measured savings, (`low`, `high`) in ms, with the prediction of `row`, if any."""
    if row.predicted_low_ms is None or row.predicted_high_ms is None:
        return "faster" if low > 0 else "slower" if high < 0 else "no-difference"
    if high < row.predicted_low_ms:
        return "less-than-predicted"
    if low > row.predicted_high_ms:
        return "more-than-predicted"
    return "as-predicted" if low > 0 else "inconclusive"
