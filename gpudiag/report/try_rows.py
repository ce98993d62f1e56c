"""List the predicted and the measured savings of tried changes, for all kinds of reports."""

from __future__ import annotations

from gpudiag.model.analysis import Analysis
from gpudiag.model.job import TriedChange
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

TRIES_HEADING = "Tried changes"
TRIES_NOTE = (
    "saved: unchanged minus changed step, with its 95 % interval; predicted: by the finding slow-compute of its cause"
)
#: Headings of `try_rows`.
TRY_COLUMNS = ("change", "predicted ms", "saved ms", "step ms", "verdict")
#: Maximum number of rows. An analysis has fewer changes, but a hostile file may have more.
_MOST_TRIES = 16
_LONGEST_REASON = 200


def try_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Return the cells of all tried changes, with the 95 % interval of the measured savings."""
    return [_cells(row) for row in analysis.tries[:_MOST_TRIES]]


def _cells(row: TriedChange) -> tuple[str, ...]:
    """Return the cells of `TRY_COLUMNS` for a change."""
    predicted = ""
    if row.predicted_ms is not None:
        predicted = _interval(row.predicted_ms, row.predicted_low_ms or 0.0, row.predicted_high_ms or 0.0)
    measured = step = ""
    if row.measured_ms is not None and row.ci95_ms is not None:
        measured = _interval(row.measured_ms, *row.ci95_ms)
        base, changed = (figures.milliseconds(ms, beside=row.base_ms) for ms in (row.base_ms, row.changed_ms))
        step = f"{base} → {changed}"
    reason = one_line(row.reason)[:_LONGEST_REASON]
    verdict = row.verdict.replace("-", " ") + (f": {reason}" if reason else "")
    return one_line(row.change)[:20], predicted, measured, step, verdict


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.1f} ({low:.1f} to {high:.1f})".replace("-", figures.MINUS)
