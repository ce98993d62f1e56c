"""Make an analysis with every optional field: parts of savings, location, alternative, order of fixes, explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpudiag.model.analysis import Explained, Finding, Fix

if TYPE_CHECKING:
    from gpudiag.model.analysis import Analysis


def completed(analysis: Analysis) -> Analysis:
    """Complete the analysis of a late loader on rank 2, and add a host stall. Fixing either (`instead`) is enough."""
    late = replace(
        analysis.findings[0],
        title="rank 2's data loading delays all ranks",
        parts_ms={"waiting": 24.6, "packing": 0.4, "kernels_slowed": 1.1},
        place="after AdamW.step, before aten::to (train.py:88)",
        instead=("host-stall",),
        evidence={"lateness_ms_by_rank": {"0": 0.0, "2": 25.6}},
    )
    stall = Finding(
        code="host-stall",
        severity="warning",
        ranks=(2,),
        cause="garbage collection",
        recoverable_ms_per_step=12.0,
        recoverable_percent=19.0,
        confidence="low",
        title="rank 2's training thread collects garbage",
        instead=("straggler",),
        advice=("Collect between steps: gc.freeze(), then gc.disable().",),
    )
    return replace(
        analysis,
        findings=(late, stall),
        next=(
            Fix(code="straggler", ranks=(2,), cause="input", step_ms=31.3, then="communication_transfer"),
            Fix(code="communication-bound", step_ms=29.9, then="compute"),
        ),
        explained=(
            Explained(bucket="communication_wait", ms=26.1, by=("straggler",)),
            Explained(bucket="launch", ms=4.2, by=("host-stall",), unexplained_ms=1.5),
            Explained(
                bucket="idle",
                ms=3.5,
                unexplained_ms=3.5,
                note="hidden by the loader, which takes as long",
            ),
        ),
    )
