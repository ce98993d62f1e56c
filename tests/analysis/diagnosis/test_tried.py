"""Test the predicted savings of tried changes."""

from __future__ import annotations

import pytest

from gpudiag.analysis.diagnosis.kernels.tried import tried_changes
from gpudiag.model.analysis import Finding
from gpudiag.model.benchmarks.tries import ChangeTurns, MeasuredTries
from gpudiag.model.job import Change, TriedChange


def finding(cause: str, saves: float, low: float, high: float, **evidence: object) -> Finding:
    """Return a finding that saves `saves` ms (and percent), with the bounds `low` and `high` in ms."""
    return Finding(
        code="slow-compute",
        severity="info",
        ranks=(0,),
        cause=cause,
        recoverable_ms_per_step=saves,
        recoverable_percent=saves,
        confidence="medium",
        title="",
        evidence={"savings_ms_low": low, "savings_ms_high": high, **evidence},
        advice=(),
    )


FOUND = (
    finding("fp32-matmul", 30.0, 20.0, 35.0, precision="tf32"),
    finding("layout-conversion", 9.0, 4.0, 10.0),
    finding("eager-attention", 3.0, 2.0, 4.0),
    finding("unfused-elementwise", 5.0, 3.0, 6.0),
)


def predicted(change: Change, found: tuple[Finding, ...] = FOUND, saved: float = 10.0) -> TriedChange:
    turns = ChangeTurns(change=change, base_ms=(100.0, 100.2, 99.8), changed_ms=(100.0 - saved,) * 3)
    (row,) = tried_changes(MeasuredTries(changes=(turns,)), found)
    return row


@pytest.mark.parametrize(
    ("change", "interval"),
    [
        ("tf32", (30.0, 20.0, 35.0)),
        ("channels-last", (9.0, 4.0, 10.0)),
        ("sdpa", (3.0, 2.0, 4.0)),
        # A compiler also chooses layouts, and fuses the operations on attention scores.
        ("compile", (17.0, 9.0, 20.0)),
        ("fused", (None, None, None)),
    ],
)
def test_change_removes_its_causes(change: Change, interval: tuple[float | None, ...]) -> None:
    row = predicted(change)
    assert (row.predicted_ms, row.predicted_low_ms, row.predicted_high_ms) == interval


def test_half_precision_is_no_tf32() -> None:
    found = (finding("fp32-matmul", 30.0, 20.0, 35.0, precision="fp16"),)
    assert predicted("tf32", found).predicted_ms is None


@pytest.mark.parametrize(
    ("saved", "verdict"),
    [(15.0, "as-predicted"), (3.0, "less-than-predicted"), (30.0, "more-than-predicted")],
)
def test_measured_savings_are_compared_with_the_interval(saved: float, verdict: str) -> None:
    assert predicted("compile", saved=saved).verdict == verdict
    assert predicted("fused", saved=saved).verdict == "faster"
