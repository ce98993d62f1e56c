"""Runs every rule on a case, weighs what each proposes, and says what is left to explain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from gpudiag.analysis.diagnosis.calibration import POOR_SIMULATION, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.conclusions.explained import explain
from gpudiag.analysis.diagnosis.conclusions.likely import likely_causes, unseen_communication
from gpudiag.analysis.diagnosis.conclusions.one_place import in_one_place
from gpudiag.analysis.diagnosis.conclusions.path import path_of_fixes
from gpudiag.analysis.diagnosis.conclusions.settled import settled
from gpudiag.analysis.diagnosis.confidence import grade, survival
from gpudiag.analysis.diagnosis.rules import RULES
from gpudiag.analysis.diagnosis.rules.compute_bound import ComputeBound
from gpudiag.analysis.diagnosis.rules.input_bound import with_unprofiled_input
from gpudiag.analysis.diagnosis.rules.rule import CannotTell, Proposal
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import unprofiled_longer_ms
from gpudiag.analysis.diagnosis.weigh import Weighed, weigh
from gpudiag.model.analysis import (
    NOT_ALL_SEEN_CODES,
    NOT_ONE_JOB_CODES,
    UNTRUSTED_CODES,
    Confidence,
    Explained,
    Finding,
    Fix,
    Validity,
)
from gpudiag.model.event import workload_of
from gpudiag.model.timeline import Timeline
from gpudiag.units import NS_PER_US

#: What makes every verdict less certain than the rule by itself thinks.
_WEAKENING = frozenset(
    {"few-steps", "partial-coverage", "dropped-events", "different-steps", "no-step-marks", "uneven-steps"}
)
#: What blurs who waited for whom.
_WEAKENING_BETWEEN_RANKS = frozenset({"clock-skew", "missing-ranks"})
#: With which compute is not said to set the pace. Lost kernels are none of these: more of them would be more compute.
_UNSURE_OF_COMPUTE = (UNTRUSTED_CODES - {"lost-kernels"}) | NOT_ALL_SEEN_CODES
_BETWEEN_RANKS = frozenset({"straggler", "communication-bound"})
#: What the profiler's cost, where it is not measured, makes uncertain: it lies in these findings' own time.
_ON_THE_HOST = frozenset({"launch-bound", "host-sync"})

_NOT_ONE_JOB = (
    "what the ranks recorded does not fit together, or that of a device is missing: nothing can be told of what "
    "happens between ranks. Record again as the warnings say."
)

_CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a job.

    Attributes:
        findings: the most worth doing first.
        next: the path of fixes.
        explained: what explains each bucket that takes 5 % of the step or more.
        validity: what could not be told, and why.
        rejected: whether the replay gives another step than the job's, so that none of its figures may be shown.
    """

    findings: tuple[Finding, ...] = ()
    next: tuple[Fix, ...] = ()
    explained: tuple[Explained, ...] = ()
    validity: tuple[Validity, ...] = ()
    rejected: bool = False


def diagnose(case: Case) -> Diagnosis:
    """All findings, the most worth doing first, what is left to explain, and what could not be told and why."""
    what_if = case.what_if
    reason = _nothing_to_simulate(case, what_if)
    if what_if is None or reason:
        told = {validity.code for validity in case.timeline.validity}
        trusted = not told & _UNSURE_OF_COMPUTE
        findings = with_unprofiled_input(case, ()) or list(likely_causes(case, reason, trusted=trusted))
        # That compute sets the pace needs no savings: nothing is left that could not be told.
        told_all = bool(findings) and all(finding.code == ComputeBound.code for finding in findings)
        doubt = () if told_all else (Validity(code="cannot-tell", message=reason),)
        return Diagnosis(findings=tuple(findings), validity=doubt, rejected=True)
    told = {validity.code for validity in case.timeline.validity}
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
    found, unsure = weigh(what_if, proposals, Significance(case, what_if))
    doubts.extend(unsure)
    found = in_one_place(case, what_if, found)
    findings = with_unprofiled_input(case, _graded(what_if, found))
    findings = _by_amount([*findings, *unseen_communication(case, findings)])
    explained = explain(case, what_if, found, findings)
    unexplained = [one for one in explained if one.unexplained_ms]
    conclusive = not doubts and not told & _UNSURE_OF_COMPUTE and not unexplained
    findings.extend(ComputeBound().conclude(case, findings, conclusive=conclusive))
    doubts.extend(_overhead(case, what_if))
    doubts.extend(_unexplained(unexplained))
    if case.outlier_steps:
        doubts.append(Validity(code="uneven-steps", message=case.outlier_steps))
    codes = told | {validity.code for validity in doubts}
    said = {finding.code for finding in findings}
    return Diagnosis(
        findings=tuple(
            _in_words_of(settled(case, _as_sure_as_the_data(case, what_if, finding, codes)), case.timeline)
            for finding in findings
        ),
        next=path_of_fixes(what_if, [one for one in found if one.finding.code in said]),
        explained=explained,
        validity=tuple(doubts),
    )


def _nothing_to_simulate(case: Case, what_if: WhatIf | None) -> str:
    """Why the replay tells nothing of this job; "" where it does."""
    if what_if is None:
        return (
            "savings need two marked steps or more with kernel launches or collectives. Record both CPU and CUDA "
            "activities over five or more marked steps."
        )
    if abs(what_if.simulated_ms - case.slowest_ms) > SAME_AMOUNT * case.slowest_ms:
        return (
            f"simulated and recorded steps disagree ({what_if.simulated_ms:.1f} and {case.slowest_ms:.1f} ms), so "
            "savings cannot be estimated. Record five or more steps after warm-up, with CPU and CUDA activities, from "
            "all ranks."
        )
    return ""


def _by_amount(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those of which only a share is known put before the first that saves less than half of that."""
    ordered = [finding for finding in findings if finding.recoverable_ms_per_step is not None]
    for finding in (finding for finding in findings if finding.recoverable_ms_per_step is None):
        share = float(finding.evidence.get("exposed_ms", 0.0))
        less = (index for index, one in enumerate(ordered) if (one.recoverable_ms_per_step or 0.0) < share / 2)
        ordered.insert(next(less, len(ordered)), finding)
    return ordered


def _graded(what_if: WhatIf, found: list[Weighed]) -> list[Finding]:
    """The findings, as sure as they survive variations of the job, and no surer than their rules say."""
    graded = []
    for one, share in zip(found, survival(what_if, found), strict=True):
        finding = one.finding
        least = max(_CONFIDENCES.index(grade(share)), _CONFIDENCES.index(finding.confidence))
        evidence = {**finding.evidence, "confirmed_by_variations_percent": 100 * share}
        graded.append(msgspec.structs.replace(finding, confidence=_CONFIDENCES[least], evidence=evidence))
    return graded


def _unexplained(explained: Sequence[Explained]) -> list[Validity]:
    return [
        Validity(
            code="unexplained", message=f"{one.bucket.replace('_', ' ')} takes {one.ms:.1f} ms of a step: {one.note}"
        )
        for one in explained
    ]


def _in_words_of(finding: Finding, timeline: Timeline) -> Finding:
    """The finding in words of what was recorded: of a repeated unit that is no step, of a host that trains nothing."""
    words = {}
    if timeline.unit != "step":
        words["step"] = timeline.unit.replace("-", " ")
    if workload_of(timeline.traces) == "inference":
        words |= {"training thread": "main thread", "stalls training": "stalls the main thread"}
    title = finding.title
    for word, other in words.items():
        title = title.replace(word, other)
    return msgspec.structs.replace(finding, title=title)


def _overhead(case: Case, what_if: WhatIf) -> list[Validity]:
    """How much of the step was the profiler's own doing, where that is much."""
    profiled, corrected = what_if.simulated_ms, what_if.corrected_ms
    if profiled - corrected < WARNING_PERCENT / 100 * profiled:
        return []
    message = f"a step takes {profiled:.1f} ms while profiling and about {corrected:.1f} ms without"
    if case.unprofiled_ms is None:
        message += (
            f", assuming {what_if.per_event_ns / NS_PER_US:.1f} µs overhead per recorded event. "
            "`gpudiag profile` times the same steps without profiling."
        )
    else:
        missing = f", and {what_if.input_not_recorded_ms:.1f} ms of waiting for input that were not recorded"
        message += missing * (what_if.input_not_recorded_ms > 0)
        message += f"; {case.unprofiled_ms:.1f} ms were measured without profiling."
    return [Validity(code="profiler-overhead", message=message)]


def _as_sure_as_the_data(case: Case, what_if: WhatIf, finding: Finding, codes: set[str]) -> Finding:
    """The finding, less sure by one grade for each kind of doubt that the data raises, if it hangs on that data."""
    if "timed_steps" in finding.evidence:
        return finding
    overhead = what_if.simulated_ms - what_if.corrected_ms
    doubts = [
        bool(codes & _WEAKENING),
        finding.code in _BETWEEN_RANKS and bool(codes & _WEAKENING_BETWEEN_RANKS),
        abs(what_if.simulated_ms - case.slowest_ms) > POOR_SIMULATION * case.slowest_ms,
        finding.code in _ON_THE_HOST
        and case.unprofiled_ms is None
        and overhead > (finding.recoverable_ms_per_step or 0.0),
        # Which rank's host is slow, the profiler may have made so: its cost differs by rank and step.
        finding.code == "straggler"
        and finding.cause == "launch"
        and overhead > (finding.recoverable_ms_per_step or 0.0),
        "longer_in_timed_steps_ms" not in finding.evidence
        and unprofiled_longer_ms(what_if.unprofiled_ms, what_if.corrected_ms)
        > SAME_AMOUNT * (finding.recoverable_ms_per_step or math.inf),
    ]
    grade = len(_CONFIDENCES) if codes & UNTRUSTED_CODES else _CONFIDENCES.index(finding.confidence) + sum(doubts)
    return msgspec.structs.replace(finding, confidence=_CONFIDENCES[min(grade, len(_CONFIDENCES) - 1)])
