"""Run every rule on a case, score the proposals, and list the unexplained time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from gpudiag.analysis.diagnosis.calibration import POOR_SIMULATION, SAME_AMOUNT, WARNING_PERCENT
from gpudiag.analysis.diagnosis.case import Case
from gpudiag.analysis.diagnosis.explained import explain, path_of_fixes
from gpudiag.analysis.diagnosis.one_place import in_one_place
from gpudiag.analysis.diagnosis.registry import CONCLUSION, REVISIONS, RULES, WITHOUT_SIMULATION
from gpudiag.analysis.diagnosis.rules.input_bound import with_unprofiled_input
from gpudiag.analysis.diagnosis.rules.rule import CannotTell, Proposal
from gpudiag.analysis.diagnosis.scoring import ScoredFinding, grade, score, settled, survival
from gpudiag.analysis.diagnosis.significance import Significance
from gpudiag.analysis.diagnosis.simulation.what_if import WhatIf
from gpudiag.analysis.diagnosis.unprofiled_steps import unprofiled_longer_ms
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

#: Warnings that lower the confidence of every finding.
_WEAKENING = frozenset(
    {"few-steps", "partial-coverage", "dropped-events", "different-steps", "no-step-marks", "uneven-steps"}
)
#: Warnings that make it uncertain which rank waited for which.
_WEAKENING_BETWEEN_RANKS = frozenset({"clock-skew", "missing-ranks"})
#: Warnings that forbid `compute-bound`. Lost kernels do not forbid this finding, because they would only add compute.
_UNSURE_OF_COMPUTE = (UNTRUSTED_CODES - {"lost-kernels"}) | NOT_ALL_SEEN_CODES
_BETWEEN_RANKS = frozenset({"straggler", "communication-bound"})
#: Findings about host time: their savings are uncertain if the profiler's cost was not measured.
_ON_THE_HOST = frozenset({"launch-bound", "host-sync"})

_NOT_ONE_JOB = (
    "what the ranks recorded does not fit together, or that of a device is missing: nothing can be told of what "
    "happens between ranks. Record again as the warnings say."
)

_CONFIDENCES_FROM_HIGH: tuple[Confidence, ...] = ("high", "medium", "low")


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a job, and warnings about the diagnosis.

    Attributes:
        findings: the findings; those most worth fixing come first.
        next: the fixes in order, each with the step time that it leaves.
        explained: the explanation of each bucket (part of the step time) that takes 5 % of the step or more.
        validity: warnings about rules that gave no answer, unexplained time, profiler overhead and outlier steps.
        rejected: whether the job could not be simulated, or not accurately, so that no simulated time may be shown.
    """

    findings: tuple[Finding, ...] = ()
    next: tuple[Fix, ...] = ()
    explained: tuple[Explained, ...] = ()
    validity: tuple[Validity, ...] = ()
    rejected: bool = False


def diagnose(case: Case) -> Diagnosis:
    """Diagnose a case; if it cannot be simulated, derive findings from the buckets' shares of the recorded step."""
    what_if = case.what_if
    reason = _reason_not_to_simulate(case, what_if)
    if what_if is None or reason:
        return _without_simulation(case, reason)
    warnings = {warning.code for warning in case.timeline.validity}
    proposals, doubts = _ask_rules(case, what_if, warnings)
    scored, insignificant = score(what_if, proposals, Significance(case, what_if))
    doubts.extend(insignificant)
    scored = _with_source_lines(case, what_if, in_one_place(case, what_if, scored))
    findings = _graded(what_if, scored)
    for revise in REVISIONS:
        findings = revise(case, findings)
    findings = _with_input_lines(case, findings)
    explained = explain(case, what_if, scored, findings)
    unexplained = [bucket for bucket in explained if bucket.unexplained_ms]
    conclusive = not doubts and not warnings & _UNSURE_OF_COMPUTE and not unexplained
    findings = _with_conclusion(findings, CONCLUSION().conclude(case, findings, conclusive=conclusive))
    doubts.extend(_overhead(case, what_if))
    doubts.extend(_unexplained(unexplained))
    if case.outlier_steps:
        doubts.append(Validity(code="uneven-steps", message=case.outlier_steps))
    codes = warnings | {doubt.code for doubt in doubts}
    reported = {finding.code for finding in findings}  # without findings that revisions replaced
    return Diagnosis(
        findings=tuple(
            _in_recorded_terms(settled(case, _weakened(case, what_if, finding, codes)), case.timeline)
            for finding in findings
        ),
        next=path_of_fixes(what_if, [finding for finding in scored if finding.finding.code in reported]),
        explained=explained,
        validity=tuple(doubts),
    )


def _with_conclusion(findings: Sequence[Finding], conclusion: Iterable[Finding]) -> list[Finding]:
    """Insert the conclusion, if there is one, before the findings of severity `info`."""
    conclusions = list(conclusion)
    if not conclusions:
        return list(findings)
    worthwhile = [finding for finding in findings if finding.severity != "info"]
    return [*worthwhile, *conclusions, *(finding for finding in findings if finding.severity == "info")]


def _reason_not_to_simulate(case: Case, what_if: WhatIf | None) -> str:
    """Return the reason why this job cannot be simulated; "" if it can be."""
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


def _without_simulation(case: Case, reason: str) -> Diagnosis:
    """Report the wait for input in unprofiled steps; without such a wait, report the buckets' shares of the step."""
    trusted = not {warning.code for warning in case.timeline.validity} & _UNSURE_OF_COMPUTE
    findings = with_unprofiled_input(case, ()) or list(WITHOUT_SIMULATION(case, reason, trusted=trusted))
    # If `compute-bound` is the only finding, a missing simulation is no reason to warn.
    certain = bool(findings) and all(finding.code == CONCLUSION.code for finding in findings)
    doubts = () if certain else (Validity(code="cannot-tell", message=reason),)
    return Diagnosis(findings=tuple(findings), validity=doubts, rejected=True)


def _ask_rules(case: Case, what_if: WhatIf, warnings: set[str]) -> tuple[list[Proposal], list[Validity]]:
    """Return the proposals of all rules, and a warning for each rule that gave no answer.

    `warnings` has the codes of warnings about the recording.
    """
    proposals: list[Proposal] = []
    doubts: list[Validity] = []
    for rule in RULES:
        if rule.code in _BETWEEN_RANKS and warnings & NOT_ONE_JOB_CODES:
            doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=_NOT_ONE_JOB))
            continue
        for verdict in rule().examine(case, what_if):
            if isinstance(verdict, CannotTell):
                doubts.append(Validity(code=f"cannot-tell:{rule.code}", message=verdict.reason))
            else:
                proposals.append(verdict)
    return proposals, doubts


def _with_source_lines(case: Case, what_if: WhatIf, scored: list[ScoredFinding]) -> list[ScoredFinding]:
    """Merge the findings that lie in one source line, and name the lines; do nothing if no lines were recorded."""
    if case.lines is None:
        return scored
    from gpudiag.analysis.diagnosis.finding_sources import with_sources  # noqa: PLC0415  # not needed for bare traces
    from gpudiag.analysis.diagnosis.one_line import in_one_line  # noqa: PLC0415  # not needed for bare traces

    return with_sources(case, what_if, in_one_line(case, what_if, scored))


def _with_input_lines(case: Case, findings: list[Finding]) -> list[Finding]:
    if case.lines is None:
        return findings
    from gpudiag.analysis.diagnosis.finding_sources import with_input_lines  # noqa: PLC0415  # not needed for bare traces

    return with_input_lines(case, findings)


def _graded(what_if: WhatIf, scored: list[ScoredFinding]) -> list[Finding]:
    """Lower each finding's confidence to the grade of the share of variations that it survives (see scoring.py)."""
    findings = []
    for scored_finding, share in zip(scored, survival(what_if, scored), strict=True):
        finding = scored_finding.finding
        confidence = max(grade(share), finding.confidence, key=_CONFIDENCES_FROM_HIGH.index)
        evidence = {**finding.evidence, "confirmed_by_variations_percent": 100 * share}
        findings.append(msgspec.structs.replace(finding, confidence=confidence, evidence=evidence))
    return findings


def _unexplained(buckets: Sequence[Explained]) -> list[Validity]:
    messages = (f"{row.bucket.replace('_', ' ')} takes {row.ms:.1f} ms of a step: {row.note}" for row in buckets)
    return [Validity(code="unexplained", message=message) for message in messages]


def _in_recorded_terms(finding: Finding, timeline: Timeline) -> Finding:
    """Replace "step" in the title if the timeline's unit is not a step, and "training" if the job does inference."""
    words = {}
    if timeline.unit != "step":
        words["step"] = timeline.unit.replace("-", " ")
    if workload_of(timeline.traces) == "inference":
        words |= {"training thread": "main thread", "stalls training": "stalls the main thread"}
    title = finding.title
    for word, fitting in words.items():
        title = title.replace(word, fitting)
    return msgspec.structs.replace(finding, title=title)


def _overhead(case: Case, what_if: WhatIf) -> list[Validity]:
    """Warn if the profiler itself took much of the step."""
    profiled, corrected = what_if.simulated_ms, what_if.corrected_ms
    if profiled - corrected < WARNING_PERCENT / 100 * profiled:
        return []
    message = f"a step takes {profiled:.1f} ms while profiling and about {corrected:.1f} ms without"
    if case.unprofiled_ms is None:
        message += f", assuming {what_if.per_event_ns / NS_PER_US:.1f} µs overhead per recorded event. "
        on_jax = case.timeline.framework == "jax"  # `gpudiag profile` does not train with JAX
        timing = "Time" if on_jax else "`gpudiag profile` times"
        message += f"{timing} the same steps without profiling."
    else:
        missing = f", and {what_if.input_not_recorded_ms:.1f} ms of waiting for input that were not recorded"
        message += missing * (what_if.input_not_recorded_ms > 0)
        message += f"; {case.unprofiled_ms:.1f} ms were measured without profiling."
    return [Validity(code="profiler-overhead", message=message)]


def _weakened(case: Case, what_if: WhatIf, finding: Finding, codes: set[str]) -> Finding:
    """Lower the confidence by one grade for each reason to doubt the finding's data, or to `low` if data are untrusted.

    `codes` are those of all warnings about the recording and the diagnosis.
    """
    if "timed_steps" in finding.evidence:  # the finding is from unprofiled steps, which recording does not change
        return finding
    saved_ms = finding.recoverable_ms_per_step or 0.0
    mostly_overhead = what_if.simulated_ms - what_if.corrected_ms > saved_ms
    doubts = [
        bool(codes & _WEAKENING),
        finding.code in _BETWEEN_RANKS and bool(codes & _WEAKENING_BETWEEN_RANKS),
        abs(what_if.simulated_ms - case.slowest_ms) > POOR_SIMULATION * case.slowest_ms,
        finding.code in _ON_THE_HOST and case.unprofiled_ms is None and mostly_overhead,
        # The profiler may have slowed this rank's host most, because the profiler's cost differs between ranks.
        finding.code == "straggler" and finding.cause == "launch" and mostly_overhead,
        # Unprofiled steps took longer than the simulation explains, and the finding's savings do not include this time.
        # Findings without savings are exempt.
        "longer_in_timed_steps_ms" not in finding.evidence
        and unprofiled_longer_ms(what_if.unprofiled_ms, what_if.corrected_ms) > SAME_AMOUNT * (saved_ms or math.inf),
    ]
    lowest = len(_CONFIDENCES_FROM_HIGH) - 1
    lowered = _CONFIDENCES_FROM_HIGH.index(finding.confidence) + sum(doubts)
    position = lowest if codes & UNTRUSTED_CODES else min(lowered, lowest)
    return msgspec.structs.replace(finding, confidence=_CONFIDENCES_FROM_HIGH[position])
