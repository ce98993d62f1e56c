"""Cause `stage` of `straggler`: a pipeline stage computes longer than the mean of all stages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gpudiag.analysis.diagnosis.calibration import LONG_STAGE
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.even_step import balance_stages, relative_work
from gpudiag.analysis.diagnosis.rules.rule import Advice, Proposal, advice_for, severity_of
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding

_ADVICE: Advice = (
    "Stage {longest} computes {times} times the mean of the stages: move about {moved} % of its work to others.",
)
_LAST: Advice = (
    (
        "The last stage also computes the output layer and the loss: give it fewer layers (Megatron-LM: "
        "--decoder-last-pipeline-num-layers or --account-for-loss-in-pipeline-split)."
    ),
)
_FIRST: Advice = (
    (
        "The first stage also computes the embedding: give it fewer layers (Megatron-LM: "
        "--decoder-first-pipeline-num-layers or --account-for-embedding-in-pipeline-split)."
    ),
)
_ALONE: Advice = ("With one rank per stage a slow device looks the same: check the clocks of the stage's devices.",)


def uneven_stages(case: Case, what_if: WhatIf) -> Iterator[Proposal]:
    """Propose a pipeline whose stages all compute as long as their mean, if a stage computes clearly longer."""
    relative = relative_work(what_if, what_if.corrected)
    long = [stage for stage, times in enumerate(relative) if times >= LONG_STAGE]
    if long:
        yield Proposal(edit=balance_stages, describe=partial(_describe, case, what_if, relative, long))


def _describe(  # noqa: PLR0917  # `partial` binds all but the last two
    case: Case, what_if: WhatIf, relative: list[float], long: list[int], gain: float, percent: float
) -> Finding:
    """Return the finding about a partition into stages.

    Args:
        case, what_if: the job and its simulation.
        relative: time of each stage's computation divided by the mean of all stages.
        long: the stages that compute clearly longer than the mean.
        gain, percent: savings of an even partition in ms per step, and in percent of the step.
    """
    peers = what_if.graph.peers  # the processes of each stage
    stage_of = {process: stage for stage, members in enumerate(peers) for process in members}
    longest = int(np.argmax(relative))
    ranks = tuple(sorted(what_if.graph.ranks[process] for process in stage_of if stage_of[process] in long))
    last = longest == len(peers) - 1
    where = "the last stage" if last else "the first stage" if longest == 0 else f"stage {longest}"
    advice = (*_ADVICE, *(_LAST if last else _FIRST if longest == 0 else ()), *(_ALONE if len(peers[0]) == 1 else ()))
    return Finding(
        code="straggler",
        severity=severity_of(percent),
        ranks=ranks,
        cause="stage",
        recoverable_ms_per_step=gain,
        recoverable_percent=percent,
        confidence="high" if len(peers[0]) > 1 else "medium",  # a single rank of a stage may have a slow device
        title=f"the partition into stages is uneven: {where} computes longest, which costs {gain:.1f} ms per step",
        evidence={
            "stages": long,
            "relative_time": {str(stage): round(times, 3) for stage, times in enumerate(relative)},
        },
        advice=advice_for(
            case.timeline.framework,
            advice,
            longest=str(longest),
            times=f"{relative[longest]:.2f}",
            moved=f"{100 * (1 - 1 / relative[longest]):.0f}",
        ),
    )
