"""Build cases with unprofiled steps."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from gpudiag.model.run import RankRecord, RunRecord, StepTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpudiag.analysis.diagnosis.case import Case


def run_of(case: Case, step_ms: Sequence[float]) -> Case:
    """Return the case with a run record in which every rank has unprofiled steps of `step_ms`."""
    times = StepTimes(
        step_ms=tuple(step_ms),
        mean_ms=statistics.fmean(step_ms),
        median_ms=statistics.median(step_ms),
        standard_error_ms=statistics.stdev(step_ms) / len(step_ms) ** 0.5,
        jitter_ms=0.0,
    )
    ranks = tuple(
        RankRecord(rank=rank, local_rank=rank, host="host", pid=rank, device="", device_name="", unprofiled=times)
        for rank in case.timeline.ranks_present
    )
    record = RunRecord(
        created="",
        command=("gpudiag", "profile"),
        workload="mlp",
        framework="pytorch",
        strategy="nccl",
        world_size=len(ranks),
        nodes=1,
        batch_size_per_device=None,
        ranks=ranks,
        status="complete",
    )
    return replace(case, run=record)
