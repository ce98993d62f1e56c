"""Compare the step with one in which all ranks and stages compute equally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpudiag.analysis.diagnosis.rules.more_work import share_tokens
from gpudiag.analysis.diagnosis.simulation.components import amount
from gpudiag.analysis.diagnosis.simulation.counterfactuals import equalize_ranks
from gpudiag.analysis.diagnosis.simulation.graph import Scenario, Times
from gpudiag.analysis.diagnosis.simulation.imbalance import lower_median
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism import Imbalance, ImbalanceCause
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds

#: Causes of `straggler` that lie in the ranks' work instead of the rank itself.
_OF_THE_WORK = ("sequence", "experts")


def imbalance_of(what_if: WhatIf, findings: Sequence[Finding]) -> Imbalance | None:
    """Return the slowdown by all imbalance and by each cause; None if a step takes no time."""
    now = what_if.corrected
    now_ms = milliseconds(what_if.model.simulate(now).step_ns)
    causes = [finding.cause for finding in findings if finding.code == "straggler"]
    of_ranks = next((cause for cause in causes if cause in _OF_THE_WORK), "rank")
    # Tokens that leave one expert go to another, so that all experts get their mean and not the median.
    equal = share_tokens(what_if, now) if of_ranks == "experts" else equalize_ranks(what_if, now)
    ideal_ms = milliseconds(what_if.model.simulate(balance_stages(what_if, equal)).step_ns)
    if not now_ms or not ideal_ms:
        return None
    without = {of_ranks: milliseconds(what_if.model.simulate(equal).step_ns)}
    if len(what_if.graph.peers) > 1:
        without["stage"] = milliseconds(what_if.model.simulate(balance_stages(what_if, now)).step_ns)
    return Imbalance(
        slowdown=now_ms / ideal_ms,
        ideal_ms=ideal_ms,
        by={
            cause: ImbalanceCause(slowdown=now_ms / other_ms, saved_ms=max(now_ms - other_ms, 0.0))
            for cause, other_ms in without.items()
            if other_ms
        },
    )


def balance_stages(what_if: WhatIf, scenario: Scenario) -> Scenario:
    """Scale the compute of each stage to the mean of the stages."""
    share = np.ones(max(what_if.graph.ranks) + 1)
    for times, peers in zip(relative_work(what_if, scenario), what_if.graph.peers, strict=True):
        share[peers] = 1 / max(times, 1e-9)
    if what_if.timeline.tracks[0].is_cpu:
        kept = np.fmin(scenario.busy, what_if.model.communication.busy)
        return replace(scenario, busy=kept + (scenario.busy - kept) * share[what_if.graph.host.process])
    compute = what_if.graph.device.op_class == OpClass.COMPUTE
    shares = np.where(compute, share[what_if.model.process_of_op], 1.0)
    return replace(scenario, duration=scenario.duration * shares)


def work_of_processes(what_if: WhatIf, scenario: Scenario) -> Times:
    """Return float64[processes], ns per step: compute of each process, which is host work on CPUs."""
    on_cpu = what_if.timeline.tracks[0].is_cpu
    work = scenario.busy if on_cpu else amount(what_if, scenario, "compute")
    process = what_if.graph.host.process if on_cpu else what_if.model.process_of_op
    count = max(what_if.graph.ranks) + 1
    total: Times = np.bincount(process, weights=work, minlength=count) / max(what_if.graph.steps, 1)
    return total


def relative_work(what_if: WhatIf, scenario: Scenario) -> list[float]:
    """Return the compute of each stage, as the lower median of its ranks, divided by the mean over stages."""
    work = work_of_processes(what_if, scenario)
    stages = np.array([lower_median(work[peers]) for peers in what_if.graph.peers])
    relative: list[float] = (stages / max(float(stages.mean()), 1.0)).tolist()
    return relative
