"""Merge all costs of one line of the user's source into one finding.

A line of the training loop is removable if it is no part of the forward pass, backward pass, update or fetch, unless it
mostly launches kernels, as a loss function does. Removable are, for example, lines that save, log, sleep or compute
metrics; lines of backward hooks are removable too. The simulation removes the line's host time, waits for the device,
copies, and kernels. A line that saves 5 % of the step becomes a finding. This finding replaces the findings that save
nothing more once the line is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import AS_RECORDED, MOST, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.one_place import MERGED_CODES, SAVING, absorbed_by, copies_of, parts_of, rescored
from gpudiag.analysis.diagnosis.rules.host_stall import ELSEWHERE, GARBAGE_COLLECTION, HostStall
from gpudiag.analysis.diagnosis.rules.rule import Advice, Edit, Proposal, advice_for, notable, severity_of
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, in_order, scored_finding
from gpudiag.analysis.diagnosis.simulation.graph import NONE, HostBlock, Scenario
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.source_lines import LineInSteps
from gpudiag.intervals import lengths_inside, within
from gpudiag.model.analysis import Finding
from gpudiag.model.timeline import OpClass
from gpudiag.units import milliseconds

#: Advice for a stall whose line is known: the advice for all stalls without the hints for locating them.
_KNOWN_LINE: Advice = ELSEWHERE[1:3]
#: Maximum number of examined lines.
_MOST_LINES = 4


def in_one_line(case: Case, what_if: WhatIf, findings: Sequence[ScoredFinding]) -> list[ScoredFinding]:
    """Merge findings that disappear if a line is removed, and add findings for lines that no rule has found."""
    merged = list(findings)
    if case.lines is None:
        return merged
    for line in case.lines.removable(WARNING_PERCENT / 100)[:_MOST_LINES]:
        merged = _with_line(case, what_if, merged, line)
    return merged


def _with_line(case: Case, what_if: WhatIf, findings: list[ScoredFinding], line: LineInSteps) -> list[ScoredFinding]:
    """Add a finding for the line if it saves enough; if a rule's finding saves almost as much, name the line there."""
    edit = partial(_without_line, line)
    gone = edit(what_if, what_if.corrected)
    if _mostly_launches(what_if, gone):
        return findings
    saved = _saving_ms(what_if, line, gone)
    if not notable(saved, what_if.now_ms) or saved < WARNING_PERCENT / 100 * what_if.now_ms:
        return findings
    absorbed = absorbed_by(what_if, [scored for scored in findings if _may_lie_in_a_line(scored.finding)], gone)
    others = [scored for scored in findings if scored not in absorbed]
    largest = max(absorbed, key=lambda scored: scored.savings_ms, default=None)
    # Stalls and inferred input waits say less than the finding about the line, which replaces them.
    of_rule = largest is not None and largest.finding.code not in {HostStall.code, "input-bound"}
    if largest is not None and of_rule and largest.savings_ms >= (1 - SAME_AMOUNT) * saved:
        finding = msgspec.structs.replace(largest.finding, source=line.source)
        return in_order([msgspec.structs.replace(largest, finding=finding), *others])
    proposal = Proposal(edit=edit, describe=partial(_describe, case, what_if, line, tuple(absorbed)))
    others = [_beside_line(rescored(scored, gone, what_if), edit, gone, what_if) for scored in others]
    kept_others = [scored for scored in others if notable(scored.savings_ms, what_if.now_ms)]
    return in_order([scored_finding(what_if, proposal, saved), *kept_others])


def _mostly_launches(what_if: WhatIf, gone: Scenario) -> bool:
    """Return whether the line, which the scenario `gone` lacks, mostly launches kernels, as a loss function does."""
    now, host, device = what_if.corrected, what_if.graph.host, what_if.graph.device
    launches = np.zeros(len(host.time), np.bool_)
    launches[device.launch[(device.op_class == OpClass.COMPUTE) & ~device.host_copy & (device.launch != NONE)]] = True
    removed = np.maximum(now.busy - gone.busy, 0.0)
    total = removed.sum() + np.maximum(now.waiting - gone.waiting, 0.0).sum()
    return bool(removed[launches].sum() >= MOST * total > 0)


def _saving_ms(what_if: WhatIf, line: LineInSteps, gone: Scenario) -> float:
    """Return the savings of the scenario `gone`, which lacks the line, in ms per step.

    If unprofiled steps are shorter than corrected steps, recording slowed other parts of the step. The savings are then
    the line's unprofiled time, multiplied by the share of its recorded time that the simulation saves.
    """
    if what_if.now_ms >= what_if.corrected_ms:
        return what_if.saving_ms(gone)
    now, host = what_if.corrected, what_if.graph.host
    removed = np.bincount(host.process, weights=now.busy - gone.busy + now.waiting - gone.waiting)
    recorded_ms = milliseconds(float(removed.max()) / max(what_if.graph.steps, 1))
    simulated_ms = max(what_if.step_ms(now) - what_if.step_ms(gone), 0.0)
    return min(simulated_ms, line.longest_ms * min(simulated_ms / max(recorded_ms, 1e-9), 1.0), what_if.max_saving_ms)


def _beside_line(scored: ScoredFinding, without_line: Edit, gone: Scenario, what_if: WhatIf) -> ScoredFinding:
    """Reduce the savings of a stall to its savings outside the line; return any other finding unchanged.

    `without_line` is the edit that removes the line, `gone` the scenario without it.
    """
    finding = scored.finding
    if finding.code != HostStall.code or finding.source is not None or finding.cause == GARBAGE_COLLECTION:
        return scored  # no stall, or one that has a line or that may be in any line
    stall = scored.proposal.edit
    alone = what_if.saving_ms(stall(what_if, what_if.corrected), what_if.corrected)
    rest = what_if.saving_ms(stall(what_if, gone), gone)
    if rest >= (1 - AS_RECORDED) * alone:
        return scored
    proposal = msgspec.structs.replace(
        scored.proposal,
        edit=partial(_rest_of_stall, stall, without_line),
        describe=partial(_describe_rest, scored.proposal.describe),
    )
    return scored_finding(what_if, proposal, min(rest, scored.savings_ms * rest / alone))


def _describe_rest(describe: Callable[[float, float], Finding], gain: float, percent: float) -> Finding:
    """Describe the rest of a stall whose main source line already has its own finding."""
    title = f"the training thread stalls at other points of the step, which costs {gain:.1f} ms per step"
    return msgspec.structs.replace(describe(gain, percent), title=title, place="", evidence={})


def _rest_of_stall(stall: Edit, without_line: Edit, what_if: WhatIf, costs: Scenario) -> Scenario:
    """Remove the host time and waits of the stall that lie outside the line."""
    gone = without_line(what_if, costs)
    both = stall(what_if, gone)
    return replace(
        costs,
        busy=costs.busy - np.maximum(gone.busy - both.busy, 0.0),
        waiting=costs.waiting - np.maximum(gone.waiting - both.waiting, 0.0),
        blocking=costs.blocking & ~(gone.blocking & ~both.blocking),
    )


def _may_lie_in_a_line(finding: Finding) -> bool:
    """Return whether a line may cause the finding; `input-bound` findings count only if inferred from unmarked time."""
    return finding.code in {*MERGED_CODES, "recompilation"} or (finding.cause or "").startswith("unmarked time")


def _without_line(line: LineInSteps, what_if: WhatIf, costs: Scenario) -> Scenario:
    """Remove the host time of a line, its waits, its copies, and the kernels that it launches."""
    host, communication = what_if.graph.host, what_if.model.communication
    untraced, traced = np.zeros(len(host.time)), np.zeros(len(host.time))
    inside = np.zeros(len(host.time), np.bool_)
    for trace, times in line.times.items():
        nodes = np.flatnonzero(host.process == trace)
        end = host.time[nodes].astype(np.int64)
        begin = np.append(line.begin_ns[trace], end[:-1])
        untraced[nodes] = lengths_inside(line.untraced[trace], begin, end)
        traced[nodes] = lengths_inside(times, begin, end) - untraced[nodes]
        inside[nodes] = within(times, end - 1)  # a node is the end of a call, which the half-open times exclude
    removed = _ops_of(inside, what_if)
    least_busy = np.fmin(costs.busy, communication.busy + communication.calls)
    least_waiting = np.fmin(costs.waiting, communication.waiting)
    return replace(
        costs,
        busy=np.maximum(costs.busy - traced, least_busy),
        waiting=np.maximum(costs.waiting - untraced, least_waiting),
        # Waits in collectives remain, because they depend on other ranks.
        blocking=costs.blocking & ~(inside & ~communication.blocks & (host.block != HostBlock.COLLECTIVE)),
        duration=np.where(removed, 0.0, costs.duration),
        gap=np.where(removed, np.fmin(costs.gap, 0.0), costs.gap),  # negative gaps (overlap) remain
    )


def _ops_of(nodes: NDArray[np.bool_], what_if: WhatIf) -> NDArray[np.bool_]:
    """Return bool[m]: the copies and compute kernels that belong to these host nodes, without communication."""
    device = what_if.graph.device
    launched = np.zeros(len(device.start), np.bool_)
    known = device.launch != NONE
    launched[known] = nodes[device.launch[known]]
    launched &= device.op_class == OpClass.COMPUTE
    return copies_of(nodes, what_if) | launched


def _describe(  # noqa: PLR0917  # `partial` binds all but the last two
    case: Case, what_if: WhatIf, line: LineInSteps, absorbed: tuple[ScoredFinding, ...], gain: float, percent: float
) -> Finding:
    """Return the finding about a line for savings of `gain` ms per step, which are `percent` of the step.

    The finding replaces the `absorbed` findings.
    """
    copied = bool({"host-sync", "slow-copy"} & {scored.finding.code for scored in absorbed})
    advice: Advice = (SAVING, *_KNOWN_LINE) if copied else _KNOWN_LINE
    return Finding(
        code=HostStall.code,
        severity=severity_of(percent),
        ranks=tuple(sorted(what_if.graph.ranks.values())),
        cause="other work within the step",
        recoverable_ms_per_step=gain,
        recoverable_percent=percent,
        confidence="high",
        title=f"the training thread does other work in {line.source.words}, which costs {gain:.1f} ms per step",
        place=next((scored.finding.place for scored in absorbed if scored.finding.place), ""),
        source=line.source,
        parts_ms=parts_of(what_if, _without_line(line, what_if, what_if.corrected), gain),
        evidence={"ms_by_finding_alone": {scored.finding.code: scored.savings_ms for scored in absorbed}}
        | {"line_ms_unprofiled": line.ms},
        advice=advice_for(case.timeline.framework, advice),
    )
