"""Make the findings about pipelines: slow workers, uneven stages, uneven sequences, and the bubble.

A worker is a stage of one data rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpudiag.analysis.pipeline.grid import Times
from gpudiag.analysis.pipeline.scenarios import SimulatedJob
from gpudiag.model.analysis import SEVERITIES, Confidence, Finding, Severity
from gpudiag.model.parallelism import Imbalance, theoretical_bubble_percent
from gpudiag.model.parallelism.operations import BACKWARD, COMPUTE_KINDS, FORWARD
from gpudiag.model.parallelism.pipeline_analysis import ScheduleBubble

#: Savings below this share of the step are not reported. Judgement: repeated runs differ by about one percent.
_MIN_PERCENT = 1.0
#: Workers are named, slowest first, until fixing these gives this share of the savings of fixing all workers.
_NAMED_SHARE = 0.9
_MOST_NAMED_RANKS = 8
#: Stages are named if they compute for this many times the mean of the stages.
_LONG_STAGE = 1.03
#: Minimum number of steps for more than low confidence.
_SEVERAL_STEPS = 3


def findings_of(job: SimulatedJob, imbalance: Imbalance, bubble: ScheduleBubble | None) -> tuple[Finding, ...]:
    """Return the findings sorted by severity, then stragglers before other findings, then by savings."""
    step_ms = float(job.steps.step_ms.mean())
    findings = [*_stragglers(job, imbalance, step_ms), *_bubbles(job, bubble, step_ms)]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                SEVERITIES.index(finding.severity),
                finding.code != "straggler",
                -(finding.recoverable_ms_per_step or 0.0),
            ),
        )
    )


def _severity(percent: float) -> Severity:
    return "critical" if percent >= 20 else "warning" if percent >= 5 else "info"


def _stragglers(job: SimulatedJob, imbalance: Imbalance, step_ms: float) -> Iterator[Finding]:
    """Yield a finding for each cause of imbalance that costs `_MIN_PERCENT` of the simulated step `step_ms` or more."""
    describe = {"rank": _slow_workers, "stage": _long_stages, "sequence": _uneven_sequences}
    for cause, effect in imbalance.by.items():
        percent = 100 * effect.saved_ms / step_ms if step_ms > 0 else 0.0
        if percent < _MIN_PERCENT:
            continue
        described = describe[cause](job)
        yield Finding(
            code="straggler",
            cause=cause,
            severity=_severity(percent),
            recoverable_ms_per_step=effect.saved_ms,
            recoverable_percent=min(percent, 100.0),
            **described,
        )


def _confidence(job: SimulatedJob, factor: Times) -> Confidence:
    """Return "high" if nearly all steps are shorter without `factor`, one of `job.factors`; "low" for too few steps."""
    saved = job.steps.step_ms - job.step_ms_without(factor)
    if len(saved) < _SEVERAL_STEPS:
        return "low"
    return "high" if (saved > 0).mean() >= 0.9 else "medium"


def _slow_workers(job: SimulatedJob) -> dict[str, Any]:
    """Return the fields of the finding about the few slowest workers, which cause nearly all of the savings.

    Workers are added, slowest first, until equalizing these with their peers saves `_NAMED_SHARE` of all savings.
    """
    grid, factor = job.grid, job.factors.worker
    computes = {stage: grid.rows_of(*COMPUTE_KINDS, stage=stage) for stage in range(grid.stages)}
    mean_ms = job.durations_ms.mean(axis=1)
    # [stage, data rank]: a worker's computation time, relative to the time of its peers for the same computations.
    relative = np.array(
        [mean_ms[rows].sum(axis=0) / (mean_ms[rows] / factor[rows, 0]).sum(axis=0) for rows in computes.values()]
    )
    slowest_first = np.dstack(np.unravel_index(np.argsort(-relative, axis=None), relative.shape))[0]
    saved_by_all_ms = float((job.steps.step_ms - job.step_ms_without(factor)).mean())
    factor_of_named = np.ones_like(factor)
    named: list[tuple[int, int]] = []
    for stage, data_rank in slowest_first[:_MOST_NAMED_RANKS].tolist():
        rows = computes[stage]
        factor_of_named[rows, :, data_rank] = factor[rows, :, data_rank]
        named.append((stage, data_rank))
        saved_ms = float((job.steps.step_ms - job.step_ms_without(factor_of_named)).mean())
        if saved_ms >= _NAMED_SHARE * saved_by_all_ms:
            break
    ranks = tuple(int(grid.ranks[worker]) for worker in named)
    slowest = float(relative[named[0]])
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return {
        "ranks": ranks,
        "title": f"One worker is slow: {who}" if len(ranks) == 1 else f"Some workers are slow: {who}",
        # Of two workers, either one is slow or the other is fast.
        "confidence": _confidence(job, factor) if factor.shape[2] > 2 else "medium",
        "evidence": {
            "relative_time": {str(int(grid.ranks[worker])): round(float(relative[worker]), 3) for worker in named},
            "stages": [stage for stage, _ in named],
            "data_ranks": [data_rank for _, data_rank in named],
        },
        "advice": (
            (
                f"Rank {ranks[0]} needs {slowest:.2f} times as long as its peers for the same computations: check its "
                "GPU's clocks, temperature and power limit, and other processes on its host."
            ),
            "Exchange its node for another one. If the slowness stays with the node, take the node out of the job.",
            "If it follows the rank, compare the work of this rank with its peers': extra hooks, logging, checkpoints.",
        ),
    }


def _long_stages(job: SimulatedJob) -> dict[str, Any]:
    """Return the fields of the finding about stages that compute longer than the mean of the stages.

    At least the longest stage is named, even if it is not longer by `_LONG_STAGE`.
    """
    grid = job.grid
    # Without the workers' factors, because slow workers are a finding of their own.
    slot_ms = job.durations_ms.mean(axis=(1, 2)) / job.factors.worker.mean(axis=(1, 2))
    stage_ms = np.array([slot_ms[grid.rows_of(*COMPUTE_KINDS, stage=stage)].sum() for stage in range(grid.stages)])
    relative = stage_ms / stage_ms.mean()
    longest = int(np.argmax(relative))
    stages = [stage for stage in range(grid.stages) if relative[stage] >= _LONG_STAGE] or [longest]
    position = "the last" if longest == grid.stages - 1 else "the first" if longest == 0 else f"stage {longest}"
    name = f"stage {longest}" if position == f"stage {longest}" else f"{position} stage ({longest})"
    advice = [
        (
            f"Stage {longest} computes {relative[longest]:.2f} times the mean of the stages: move about "
            f"{100 * (1 - 1 / relative[longest]):.0f} % of its work to the others."
        )
    ]
    if longest == grid.stages - 1:
        advice.append(
            "The last stage also computes the output layer and the loss: give it fewer layers (Megatron-LM: "
            "--decoder-last-pipeline-num-layers or --account-for-loss-in-pipeline-split)."
        )
    elif longest == 0:
        advice.append(
            "The first stage also computes the embedding: give it fewer layers (Megatron-LM: "
            "--decoder-first-pipeline-num-layers or --account-for-embedding-in-pipeline-split)."
        )
    if grid.ranks.shape[1] == 1:
        advice.append("With one worker per stage a slow GPU looks the same: check the clocks of the stage's GPUs.")
    return {
        "ranks": tuple(int(rank) for stage in stages for rank in grid.ranks[stage]),
        "title": f"The partition into stages is uneven: {name} is the longest",
        "confidence": "low" if grid.ranks.shape[1] == 1 else _confidence(job, job.factors.stage),
        "evidence": {
            "stages": stages,
            "relative_time": {str(stage): round(float(share), 3) for stage, share in enumerate(relative)},
        },
        "advice": tuple(advice),
    }


def _uneven_sequences(job: SimulatedJob) -> dict[str, Any]:
    """Return the fields of the finding about the spread of the microbatches' times."""
    grid = job.grid
    spread = job.factors.sequence[grid.rows_of(FORWARD, BACKWARD)]
    low, high = np.quantile(spread, (0.05, 0.95))
    correlation = job.factors.correlation
    evidence: dict[str, Any] = {"microbatch_time_5_to_95_percent": [round(float(low), 3), round(float(high), 3)]}
    if correlation is not None:
        evidence["forward_backward_correlation"] = round(correlation, 3)
    return {
        "title": "Microbatches take different times: the lengths of sequences vary",
        "confidence": _confidence(job, job.factors.sequence),
        "evidence": evidence,
        "advice": (
            (
                f"Microbatches take {low:.2f} to {high:.2f} times their mean (5 to 95 %), alike on all stages. "
                "Distribute sequences so that all microbatches of all ranks cost the same: attention costs the square "
                "of a length."
            ),
            "Pack sequences by cost rather than by number of tokens, and assign them within a whole global batch.",
            "Limit the longest sequence, or split it over ranks (context parallelism).",
        ),
    }


def _bubbles(job: SimulatedJob, bubble: ScheduleBubble | None, step_ms: float) -> Iterator[Finding]:
    """Report the bubble; nothing below `_MIN_PERCENT`, or without pipeline (`bubble` is None).

    The savings are half of the bubble, because microbatches of half the size halve the bubble. Confidence is high if
    the bubble is within 5 percentage points of the theoretical bubble.
    """
    if bubble is None or step_ms <= 0:
        return
    saved = bubble.ms / 2
    percent = 100 * saved / step_ms
    if percent < _MIN_PERCENT:
        return
    stages, microbatches, chunks = job.grid.stages, job.grid.microbatches, job.grid.chunks_per_stage
    now, halved = (theoretical_bubble_percent(stages, count, chunks) for count in (microbatches, 2 * microbatches))
    yield Finding(
        code="pipeline-bubble",
        severity=_severity(percent),
        recoverable_ms_per_step=saved,
        recoverable_percent=min(percent, 100.0),
        confidence="high" if abs(bubble.percent - bubble.theoretical_percent) < 5 else "medium",
        title=f"The pipeline is idle for {bubble.percent:.0f} % of its span by its schedule alone",
        evidence={
            "bubble_percent": round(bubble.percent, 2),
            "theoretical_percent": round(bubble.theoretical_percent, 2),
            "stages": stages,
            "microbatches": microbatches,
            "chunks_per_stage": chunks,
        },
        advice=(
            (
                f"Train {2 * microbatches} microbatches of half the size instead of {microbatches}: the bubble becomes "
                f"{halved:.0f} % instead of {now:.0f} %, if half a microbatch takes half the time."
            ),
            f"Interleave: {2 * chunks} parts of the model per stage have the same effect, for more transfers.",
            "Use fewer stages where the memory allows.",
        ),
    )
