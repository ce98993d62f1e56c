"""The verdict in words, the same on every surface: what to fix, what that saves, where it is, and what comes after."""

from __future__ import annotations

from collections.abc import Sequence

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Explained, Finding
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.evidence import evidence_items
from gpudiag.report.kernel_names import plain_names
from gpudiag.report.palette import LABELS

#: A line of someone else's text is cut here; no rule writes longer ones.
LONGEST_TEXT = 400
PATH_HEADING = "Fixes in order:"
#: The key of the evidence that says why a finding has no figure.
_REASON = "reason"
_MOST_REASONS = 4
_MOST_LINES = 8
_STEP_TIMES = {"unprofiled_mean_ms": "measured", "corrected_mean_ms": "estimated"}
#: What a step is limited by when most of what is left of it is in a bucket.
_LIMITS = {
    "communication_transfer": "communication",
    "communication_wait": "waiting for other ranks",
    "copy": "copies",
    "input": "data loading",
    "sync": "synchronization",
    "launch": "kernel launches",
    "idle": "idle time",
}
_SEPARATOR = " · "


def main_finding(findings: Sequence[Finding]) -> Finding | None:
    """The first finding that is worth acting on; where none is, the one that says so, else the first."""
    worthwhile = [finding for finding in findings if finding.severity != "info"]
    plain = [finding for finding in findings if finding.code == "compute-bound"]
    return next(iter([*worthwhile, *plain, *findings]), None)


def headline_finding(analysis: Analysis) -> Finding | None:
    """The finding that the verdict begins with; None where none is worth acting on and part of the step is unexplained.

    What saves a percent is no verdict on a job half of whose step nothing explains.
    """
    main = main_finding(analysis.findings)
    unexplained = any(one.unexplained_ms > 0 for one in analysis.explained)
    return None if main is not None and main.severity == "info" and unexplained else main


def no_finding(analysis: Analysis) -> str:
    """What to say where there is no finding: what the input alone delivers, what nothing explains, that data lacks."""
    if analysis.source.input_only:
        rate = f"{figures.throughput(analysis.source.samples_per_s)} samples/s"
        return (
            f"The input alone: it delivers {rate} to {analysis.world_size} process{'es' * (analysis.world_size > 1)}."
        )
    most = max(analysis.explained, key=lambda one: one.unexplained_ms, default=None)
    if most is None or most.unexplained_ms <= 0:
        return "Not enough data for a diagnosis."
    step_ms = analysis.steps.mean_ms
    share = f"{figures.milliseconds(most.ms, beside=step_ms)} ms ({figures.percent(most.ms, step_ms)})"
    return f"No cause found: nothing explains {_bucket(most.bucket)}, {share} of a step."


def title_of(finding: Finding) -> str:
    """Its title as a sentence begins, short enough for a line."""
    title = _line(finding.title or finding.code)
    return title[:1].upper() + title[1:]


def about(finding: Finding) -> str:
    """Its code, how bad it is, of which ranks, and what causes it, in a line."""
    parts = [_line(finding.code), finding.severity]
    parts += [figures.ranks(finding.ranks)] if finding.ranks else []
    parts += [f"cause: {_line(finding.cause)}"] if finding.cause else []
    return _SEPARATOR.join(parts)


def savings(finding: Finding, step_ms: float) -> str:
    """What fixing it would save, what that is made of, and how sure that is."""
    confidence = f"Confidence: {finding.confidence}."
    saved = finding.recoverable_ms_per_step
    if saved is None:
        reason = _line(str(finding.evidence.get(_REASON, ""))).rstrip(".")
        return f"What fixing this would save is not known: {reason}. {confidence}" if reason else confidence
    if saved <= 0:
        return confidence
    share = finding.recoverable_percent
    percent = "" if share is None else f" ({figures.percent(share, 100)})"
    parts_ms = [(name, figures.milliseconds(ms, beside=step_ms)) for name, ms in finding.parts_ms.items()]
    made_of = " + ".join(
        f"{ms} {_line(name.replace('_', ' '))}"
        for name, ms in parts_ms[:_MOST_LINES]
        if "<" not in ms and ms.strip("-0.")  # what would be shown as nothing is left out
    )
    about_ms = figures.milliseconds(saved, beside=step_ms)
    parts = f": {made_of}" if made_of else ""
    about = "up to" if _at_best(finding) else "about"
    return f"Fixing this would save {about} {about_ms} ms per step{percent}{parts}. {confidence}"


def _at_best(finding: Finding) -> bool:
    """Whether none of it can be spared entirely: no job of several devices is without communication."""
    return finding.code == "communication-bound"


def where(finding: Finding) -> str:
    """Its place in the step and the code, "" where none is known or its title says it."""
    return f"Where: {_line(finding.place)}" if finding.place and finding.place not in finding.title else ""


def or_instead(finding: Finding, analysis: Analysis) -> str:
    """Which other findings could be fixed instead of this one, "" where there is none."""
    if not finding.instead:
        return ""
    others = [_named(code, analysis) for code in dict.fromkeys(finding.instead)]
    suffices = "either suffices" if len(others) == 1 else "any one suffices"
    return f"Or instead: {' or '.join(others)}; {suffices}."


def _named(code: str, analysis: Analysis) -> str:
    other = next((finding for finding in analysis.findings if finding.code == code), None)
    saved = other.recoverable_ms_per_step if other is not None else None
    if other is None or saved is None:
        return _line(code)
    ms = figures.milliseconds(saved, beside=analysis.steps.mean_ms)
    return f"{_who(code, other.ranks, other.cause)}, saving about {ms} ms"


def _who(code: str, ranks: Sequence[int], cause: str | None) -> str:
    parts = ([figures.ranks(ranks)] if ranks else []) + ([_line(cause)] if cause else [])
    return f"{_line(code)}{f' ({_SEPARATOR.join(parts)})' if parts else ''}"


def finding_lines(finding: Finding, analysis: Analysis) -> list[str]:
    """All that is said of a finding between its title and its advice."""
    evidence = evidence_items({key: value for key, value in finding.evidence.items() if key != _REASON})
    lines = (
        savings(finding, analysis.steps.mean_ms),
        where(finding),
        or_instead(finding, analysis),
        f"Evidence: {'; '.join(evidence)}" if evidence else "",
    )
    return [line for line in lines if line]


def first_fix(analysis: Analysis) -> Finding | None:
    """The finding to fix first; None where the data cannot be trusted, or nothing can be advised."""
    if any(validity.code in UNTRUSTED_CODES for validity in analysis.validity):
        return None
    advised = [finding for finding in analysis.findings if finding.advice]
    main = main_finding(advised)
    if main is None or main.severity == "info":
        return main
    path = [(fix.code, fix.ranks) for fix in analysis.next[:1]]
    return next((one for one in advised if (one.code, one.ranks) in path), main)


def next_step(analysis: Analysis) -> str:
    """The one thing to do now, and how to see whether it helped."""
    finding = first_fix(analysis)
    if analysis.source.input_only:
        return (
            "Compare it with the same job's samples/s with its model: where they are hardly fewer, the input is the "
            "limit, and no faster device helps; where they are many fewer, it is not."
        )
    if finding is None:
        return "Record again as the warnings say."
    step = _line(finding.advice[0])
    if finding.severity == "info":
        return step
    steps = analysis.steps
    real = steps.unprofiled_mean_ms or steps.corrected_mean_ms
    before, gain = real or steps.mean_ms, finding.recoverable_ms_per_step
    after = analysis.next[0].step_ms if analysis.next else before - (gain or 0.0)
    if not 0 < after < before:
        return f"{step} Then record and analyse again."
    how = " without profiling" if real else ""
    then = f", then limited by {_limit(analysis.next[0].then)}" if analysis.next else ""
    after_ms = figures.milliseconds(after, beside=before)
    about = "at best about" if _at_best(finding) else "about"
    return (
        f"{step} With {_who(finding.code, finding.ranks, finding.cause)} fixed a step should take "
        f"{about} {after_ms} ms{how} instead of {figures.milliseconds(before)}{then}: record and analyse again."
    )


def path_lines(analysis: Analysis) -> list[str]:
    """The fixes, each done after those before it: which, the step then, and what limits it. None of a single one."""
    first = first_fix(analysis)
    if first is None or first.severity == "info" or len(analysis.next) < 2:
        return []
    longest = max((fix.step_ms for fix in analysis.next), default=0.0)
    return [
        f"{_who(fix.code, fix.ranks, fix.cause)}: step {figures.milliseconds(fix.step_ms, beside=longest)} ms, "
        f"then limited by {_limit(fix.then)}"
        for fix in analysis.next[:_MOST_LINES]
    ]


def explained_lines(analysis: Analysis) -> list[str]:
    """Each bucket that takes much of a step: how much, and what explains it or that nothing does."""
    step_ms = analysis.steps.mean_ms
    return [
        f"{_bucket(one.bucket)} {figures.milliseconds(one.ms, beside=step_ms)} ms "
        f"({figures.percent(one.ms, step_ms)}): {_explanation(one, step_ms)}"
        for one in analysis.explained[: len(LABELS)]
    ]


def _explanation(one: Explained, step_ms: float) -> str:
    parts = [", ".join(_line(code) for code in one.by[:_MOST_LINES])] if one.by else []
    if one.note:
        parts.append(_line(one.note))
    elif one.unexplained_ms > 0 or not one.by:
        parts.append(f"{figures.milliseconds(one.unexplained_ms or one.ms, beside=step_ms)} ms unexplained")
    return "; ".join(parts)


def doubts(analysis: Analysis) -> list[tuple[str, str]]:
    """Why to trust the figures less, and which are missing: (code or which figure, in words)."""
    said = [(_line(warning.code), _line(warning.message)) for warning in analysis.validity]
    steps = analysis.steps
    for key, reason in list(steps.reasons.items())[:_MOST_REASONS]:
        # Where it was measured, nobody misses the estimate.
        if getattr(steps, key, None) is None and steps.unprofiled_mean_ms is None:
            said.append((f"No step time {_STEP_TIMES.get(key, _line(key))} without profiling", _line(reason)))
    return said


def _bucket(name: str) -> str:
    return LABELS.get(name, _line(name))


def _limit(bucket: str) -> str:
    return _LIMITS.get(bucket) or _bucket(bucket)


def _line(text: str) -> str:
    return plain_names(one_line(text))[:LONGEST_TEXT]
