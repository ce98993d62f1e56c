"""Judge the analysis of a random pipeline against its true causes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpudiag.analysis.pipeline.analyse import analyse_operations
from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism.pipeline_analysis import PipelineAnalysis
from tests.analysis.pipeline.random_pipelines import Pipeline, execute, true_costs

#: Findings with a smaller share of the step are neither required nor false alarms.
NOTABLE = 0.05
#: Share of the step from which a fault must be found. Between `NOTABLE` and `REQUIRED`, chance may decide.
REQUIRED = 0.07
#: If the costs of two faults differ by less than this factor, their order does not matter.
CLEARLY_MORE = 1.3
#: Allowed error of an amount: relative, or as a share of the step.
AMOUNT, AMOUNT_OF_STEP = 0.15, 0.02


@dataclass(frozen=True, kw_only=True)
class JudgedPipeline:
    """A job with its analysis, its true costs in ms, and the errors of the analysis (empty if it is right)."""

    pipeline: Pipeline
    analysis: PipelineAnalysis
    costs: dict[str, float]
    step_ms: float
    wrong: tuple[str, ...]


def judged(pipeline: Pipeline) -> JudgedPipeline:
    """Analyse a job and judge the findings."""
    table, step_ms = execute(pipeline)
    analysis = analyse_operations(table)
    costs = dict(true_costs(pipeline))
    wrong = tuple(_wrong(pipeline, analysis, costs, step_ms))
    return JudgedPipeline(pipeline=pipeline, analysis=analysis, costs=costs, step_ms=step_ms, wrong=wrong)


def _wrong(pipeline: Pipeline, analysis: PipelineAnalysis, costs: dict[str, float], step_ms: float) -> list[str]:
    """Describe the errors: missing, inexact, false or wrongly ordered stragglers, and a wrong simulated step."""
    stragglers = {finding.cause or "": finding for finding in analysis.findings if finding.code == "straggler"}
    wrong = []
    required = {fault: cost for fault, cost in costs.items() if cost >= REQUIRED * step_ms}
    for fault, cost in required.items():
        finding = stragglers.get(fault)
        if finding is None:
            wrong.append(f"{fault} not found ({100 * cost / step_ms:.0f} %)")
            continue
        error = abs((finding.recoverable_ms_per_step or 0.0) - cost)
        if error > max(AMOUNT * cost, AMOUNT_OF_STEP * step_ms):
            wrong.append(f"{fault}: {finding.recoverable_ms_per_step:.1f} ms instead of {cost:.1f}")
        wrong += _wrong_ranks(pipeline, finding)
    if required:
        first = next((finding for finding in analysis.findings if finding.code == "straggler"), None)
        most = max(costs.values())
        if first is not None and costs.get(first.cause or "", 0.0) * CLEARLY_MORE < most:
            wrong.append(f"first is {first.cause}")
    for cause, finding in stragglers.items():
        saved = finding.recoverable_ms_per_step or 0.0
        if saved - costs.get(cause, 0.0) >= NOTABLE * step_ms and cause not in required:
            wrong.append(f"false alarm: {cause} ({100 * saved / step_ms:.0f} %)")
    if analysis.replay_error_percent > 1.0:
        wrong.append(f"replay error {analysis.replay_error_percent:.2f} %")
    return wrong


def _wrong_ranks(pipeline: Pipeline, finding: Finding) -> list[str]:
    """Describe the errors in the ranks of a straggler finding."""
    if finding.cause == "rank" and pipeline.rank is not None:
        stage, data_rank, _ = pipeline.rank
        expected: tuple[int, ...] = (stage * pipeline.data_ranks + data_rank,)
    elif finding.cause == "stage":
        stage = int(np.argmax(pipeline.stage))
        expected = tuple(stage * pipeline.data_ranks + data_rank for data_rank in range(pipeline.data_ranks))
    else:  # long sequences are not specific to any rank
        expected = ()
    return [] if finding.ranks == expected else [f"{finding.cause}: ranks {finding.ranks} instead of {expected}"]
