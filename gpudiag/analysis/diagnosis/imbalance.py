"""Compare the step with one in which all ranks and stages compute equally long."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.analysis.diagnosis.rules.uneven_stages import balance_stages
from gpudiag.analysis.diagnosis.simulation.counterfactuals import equalize_ranks
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.model.analysis import Finding
from gpudiag.model.parallelism import Imbalance, ImbalanceCause
from gpudiag.units import milliseconds

#: Causes of `straggler` that lie in the ranks' work instead of the rank itself.
_OF_THE_WORK = ("sequence", "experts")


def imbalance_of(what_if: WhatIf, findings: Sequence[Finding]) -> Imbalance | None:
    """Return the slowdown by imbalance, and that of each cause; None if a step takes no time."""
    now = what_if.corrected
    now_ms = milliseconds(what_if.model.simulate(now).step_ns)
    equal = equalize_ranks(what_if, now)
    ideal_ms = milliseconds(what_if.model.simulate(balance_stages(what_if, equal)).step_ns)
    if not now_ms or not ideal_ms:
        return None
    causes = [finding.cause for finding in findings if finding.code == "straggler"]
    of_ranks = next((cause for cause in causes if cause in _OF_THE_WORK), "rank")
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
