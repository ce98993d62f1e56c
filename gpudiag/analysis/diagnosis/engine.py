"""Runs every rule on a case, replays what each proposes, and sorts what is found."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.replay.simulate import Costs
from gpudiag.analysis.diagnosis.replay.what_if import WhatIf
from gpudiag.analysis.diagnosis.rules import RULES
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.input_bound import with_timed_input
from gpudiag.analysis.diagnosis.rules.rule import CannotTell, Proposal, notable
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.model.analysis import NOT_ONE_JOB_CODES, UNTRUSTED_CODES, Confidence, Finding, Validity
from gpudiag.units import NS_PER_US

#: A replay that misses the measured step time by more than this share is trusted less; by more than the other, not at
#: all.
_POOR_REPLAY = 0.03
_FAILED_REPLAY = 0.25
#: What makes every verdict less certain than the rule by itself thinks.
_WEAKENING = frozenset({"few-steps", "dropped-events", "different-steps", "no-step-marks", "uneven-steps"})
#: What blurs who waited for whom.
_WEAKENING_BETWEEN_RANKS = frozenset({"clock-skew", "missing-ranks"})
_BETWEEN_RANKS = frozenset({"straggler", "communication-bound"})
#: What the profiler's cost, where it is not measured, makes uncertain: it lies in these findings' own time.
_ON_THE_HOST = frozenset({"launch-bound", "host-sync"})
#: From this share of the step on, the profiler's cost is worth a word.
_NOTABLE_OVERHEAD = 0.05

_NOT_ONE_JOB = (
    "what the ranks recorded does not fit together, or that of a device is missing: nothing can be told of what "
    "happens between ranks. Record again as the warnings say."
)

_CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")


def diagnose(case: Case) -> tuple[tuple[Finding, ...], tuple[Validity, ...]]:
    """All findings, largest recoverable time first, and what could not be told and why."""
    what_if = case.what_if
    told = {validity.code for validity in case.timeline.validity}
    if what_if is None:
        reason = (
            "nothing that could be replayed was recorded: it takes two marked steps or more, with launches of device "
            "work or collectives handed over. Record both CPU and CUDA activities over five or more marked steps."
        )
        return tuple(with_timed_input(case, ())), (Validity(code="cannot-tell", message=reason),)
    if abs(what_if.replayed_ms - case.slowest_ms) > _FAILED_REPLAY * case.slowest_ms:
        reason = (
            f"replayed unchanged, a step takes {what_if.replayed_ms:.1f} ms, but it was {case.slowest_ms:.1f} ms long: "
            "what sets the pace is not in the traces, or no two steps are alike. Record five or more steps after "
            "warm-up, with CPU and CUDA activities, from all ranks."
        )
        return tuple(with_timed_input(case, ())), (Validity(code="cannot-tell", message=reason),)
    proposals: list[Proposal] = []
    doubts: list[Validity] = []
    for rule in RULES:
        if rule.code in _BETWEEN_RANKS and told & NOT_ONE_JOB_CODES:
            doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=_NOT_ONE_JOB))
            continue
        for verdict in rule().examine(case):
            if isinstance(verdict, CannotTell):
                doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=verdict.reason))
            else:
                proposals.append(verdict)
    findings, unsure = _weigh(what_if, proposals, Significance(case, what_if))
    doubts.extend(unsure)
    findings = with_timed_input(case, findings)
    findings.extend(ComputeBound().conclude(case, findings, conclusive=not doubts and not told & UNTRUSTED_CODES))
    doubts.extend(_overhead(case, what_if))
    if case.outlier_steps:
        doubts.append(Validity(code="uneven-steps", message=case.outlier_steps))
    codes = told | {validity.code for validity in doubts}
    return tuple(_as_sure_as_the_data(case, what_if, finding, codes) for finding in findings), tuple(doubts)


def _overhead(case: Case, what_if: WhatIf) -> list[Validity]:
    """How much of the step was the profiler's own doing, where that is much."""
    profiled, corrected = what_if.replayed_ms, what_if.corrected_ms
    if profiled - corrected < _NOTABLE_OVERHEAD * profiled:
        return []
    message = f"recording made a step {profiled:.1f} ms long; without it, it takes about {corrected:.1f} ms"
    if case.unprofiled_ms is None:
        message += (
            f", if each recorded event costs the host {what_if.per_event_ns / NS_PER_US:.1f} µs, as its pace suggests. "
            "`gpudiag profile` times the same steps unprofiled."
        )
    else:
        message += f", and {case.unprofiled_ms:.1f} ms were measured unprofiled."
    return [Validity(code="profiler-overhead", message=message)]


def _as_sure_as_the_data(case: Case, what_if: WhatIf, finding: Finding, codes: set[str]) -> Finding:
    """The finding, less sure by one grade for each kind of doubt that the data raises, if it hangs on that data."""
    if "timed_steps" in finding.evidence:
        return finding
    overhead = what_if.replayed_ms - what_if.corrected_ms
    doubts = [
        bool(codes & _WEAKENING),
        finding.code in _BETWEEN_RANKS and bool(codes & _WEAKENING_BETWEEN_RANKS),
        abs(what_if.replayed_ms - case.slowest_ms) > _POOR_REPLAY * case.slowest_ms,
        finding.code in _ON_THE_HOST
        and case.unprofiled_ms is None
        and overhead > (finding.recoverable_ms_per_step or 0.0),
        # Which rank's host is slow, the profiler may have made so: its cost differs by rank and step.
        finding.code == "straggler"
        and finding.cause == "launch"
        and overhead > (finding.recoverable_ms_per_step or 0.0),
    ]
    grade = len(_CONFIDENCES) if codes & UNTRUSTED_CODES else _CONFIDENCES.index(finding.confidence) + sum(doubts)
    return msgspec.structs.replace(finding, confidence=_CONFIDENCES[min(grade, len(_CONFIDENCES) - 1)])


def _weigh(what_if: WhatIf, proposals: list[Proposal], certainty: Significance) -> tuple[list[Finding], list[Validity]]:
    """Findings by gain, alone; a cause whose gain is gone once the larger ones are fixed is not a cause of its own.

    A host that spends 40 ms in its loader and 15 ms launching, for a device that needs 30 ms, would be 15 ms faster
    with launches for free. But once the loader is fixed the launches hide behind the device: they are no finding.
    """
    base_ms = what_if.now_ms
    edits = [proposal.edit(what_if.corrected) for proposal in proposals]
    parts = [what_if.corrected if one.beyond is None else one.beyond(what_if.corrected) for one in proposals]
    by_edit = what_if.gains_ms([*edits, *parts])
    gains = [
        (gain, proposal)
        for gain, part, proposal in zip(by_edit, by_edit[len(edits) :], proposals, strict=False)
        if notable(gain - part, base_ms)
    ]
    gains.sort(key=lambda pair: -pair[0])
    findings: list[Finding] = []
    doubts: list[Validity] = []
    edited: list[Callable[[Costs], Costs]] = []
    fixed, fixed_ms = what_if.corrected, what_if.corrected_ms
    for gain, proposal in gains:
        if not notable(gain, base_ms):
            continue
        together = proposal.edit(fixed)
        together_ms = what_if.step_ms(together)
        if findings and not notable(fixed_ms - together_ms, base_ms):
            continue
        finding = proposal.describe(gain, 100 * gain / base_ms)
        doubt = certainty.doubt(finding, fixed_ms - together_ms, edited, proposal.edit)
        if doubt is not None:
            doubts.append(Validity(code=f"cannot-tell:{finding.code}", message=doubt))
            continue
        evidence = {**finding.evidence, "step_ms_now": base_ms, "step_ms_without": base_ms - gain}
        if findings:
            evidence["gain_after_larger_fixes_ms"] = fixed_ms - together_ms
        findings.append(msgspec.structs.replace(finding, evidence=evidence))
        edited.append(proposal.edit)
        fixed, fixed_ms = together, together_ms
    return findings, doubts
