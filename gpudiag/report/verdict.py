"""The verdict in words, the same on every surface: what to fix, what that saves, where it is, and what comes after."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Explained, Finding, Severity
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.evidence import evidence_items
from gpudiag.report.header import overhead_lines, real_step_ms, unit_of
from gpudiag.report.headline import Headline, headline_of
from gpudiag.report.kernel_names import plain_names
from gpudiag.report.no_finding import nothing_found, one_rank_of_several, what_to_do_without_finding
from gpudiag.report.palette import LABELS

#: A line of someone else's text is cut here; no rule writes longer ones.
LONGEST_TEXT = 400
PATH_HEADING = "Fixes in order:"
#: The key of the evidence that says why a finding has no figure.
_REASON = "reason"
#: What the gain line says already.
_SAID_ELSEWHERE = frozenset({_REASON, "step_ms_now", "step_ms_if_fixed"})
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
#: Two calculations of the step after a fix agree within this share of the step.
_AGREE = 0.1
#: Parts below this share of a saving are summed as indirect.
_MAIN_PART = 0.25
_PARTS = {"exposed": "not overlapped with compute", "CPU calls": "in CPU calls"}
_SEPARATOR = " · "


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The report's answer. Texts are one printable line each, "" where there is nothing to say.

    Attributes:
        headline: what it is made of; None where no finding is worth leading with.
        severity: None likewise.
        title: the answer in a sentence.
        gain: the step's time before and after the fix.
        parts: what the gain is made of.
        confidence: how sure that is.
        where: its place in the step and the code.
        instead: which other findings could be fixed instead.
        steps: what to do, first things first.
        advised: the steps are the findings' advice, and not what to record instead.
        path: the fixes in order, if there are several.
    """

    headline: Headline | None = None
    severity: Severity | None = None
    title: str
    gain: str = ""
    parts: str = ""
    confidence: str = ""
    where: str = ""
    instead: str = ""
    steps: tuple[str, ...] = ()
    advised: bool = False
    path: tuple[str, ...] = ()


def verdict_of(analysis: Analysis) -> Verdict:
    """Return the verdict on an analysis."""
    headline = headline_of(analysis)
    if headline is None:
        return Verdict(title=nothing_found(analysis), steps=(what_to_do_without_finding(analysis),))
    finding = headline.finding
    advice = tuple(_line(advice) for advice in headline.advice) if _trusted(analysis) else ()
    return Verdict(
        headline=headline,
        severity=finding.severity,
        title=title_of(finding, headline.title),
        gain=gain(finding, analysis),
        parts=parts(finding, analysis),
        confidence=finding.confidence,
        where=where(finding),
        instead=or_instead(finding, analysis),
        steps=advice or (what_to_do_without_finding(analysis),),
        advised=bool(advice),
        path=tuple(path_lines(analysis, finding)) if _trusted(analysis) else (),
    )


def in_few_words(analysis: Analysis) -> str:
    """Return what a report leads with, short enough for a cell: `straggler (rank 2), saves about 26.1 ms per step`."""
    headline = headline_of(analysis)
    if headline is None:
        return "no finding"
    finding = headline.finding if headline.cause is None else headline.cause
    saved = saves(headline.finding, analysis).partition(" (")[0]
    who = _who(finding.code, finding.ranks if len(finding.ranks) < len(analysis.ranks_present) else (), None)
    return f"{who}, {saved[:1].lower()}{saved[1:]}" if saved else who


def other_findings(analysis: Analysis, verdict: Verdict) -> list[Finding]:
    """Return the findings that the verdict does not speak of."""
    headline = verdict.headline
    said = () if headline is None else (headline.finding, headline.cause)
    return [finding for finding in analysis.findings if not any(finding is other for other in said)]


def title_of(finding: Finding, title: str = "") -> str:
    """Return a finding's title as a sentence begins, short enough for a line."""
    words = _line(title or finding.title or finding.code)
    return words[:1].upper() + words[1:]


def about(finding: Finding) -> str:
    """Return a finding's code, severity, ranks and cause in a line."""
    parts = [_line(finding.code), finding.severity]
    parts += [figures.ranks(finding.ranks)] if finding.ranks else []
    parts += [f"cause: {_line(finding.cause)}"] if finding.cause else []
    return _SEPARATOR.join(parts)


def gain(finding: Finding, analysis: Analysis) -> str:
    """Return `57.1 → 31.3 ms per step (-45 %), then limited by communication`, or why that is not known."""
    saved = finding.recoverable_ms_per_step
    if saved is None:
        reason = _line(str(finding.evidence.get(_REASON, ""))).rstrip(".")
        return f"not known: {reason}" if reason else "not known"
    if saved <= 0:
        return ""
    before, after, then = _before_and_after(finding, analysis, saved)
    if after is None:
        return f"about {figures.milliseconds(saved)} ms {_per(analysis)}"
    about = " at best" if _at_best(finding) else ""
    change = f" ({figures.MINUS}{figures.percent(before - after, before)})"
    limited = f", then limited by {_limit(then)}" if then else ""
    shown = figures.milliseconds(after, beside=before)
    return f"{figures.milliseconds(before)} → {shown} ms {_per(analysis)}{about}{change}{limited}"


def _before_and_after(finding: Finding, analysis: Analysis, saved: float) -> tuple[float, float | None, str]:
    """Return (step now, step after the fix or None, the bucket that limits it then or "")."""
    before = real_step_ms(analysis)
    if not 0 < saved < before:
        return before, None, ""
    after = before - saved
    if first_of_path(finding, analysis):
        fix = analysis.next[0]
        if abs(fix.step_ms - after) <= _AGREE * before and 0 < fix.step_ms < before:
            return before, after, fix.then
    return before, after, ""


def first_of_path(finding: Finding, analysis: Analysis) -> bool:
    """Return whether the path of fixes begins with this finding."""
    return bool(analysis.next) and (analysis.next[0].code, analysis.next[0].ranks) == (finding.code, finding.ranks)


def _per(analysis: Analysis) -> str:
    unit = unit_of(analysis)
    return f"per {unit}" if unit != "recording" else "of the recording"


def savings(finding: Finding, analysis: Analysis) -> str:
    """Return what fixing a finding would save, of what that is made, and how sure it is."""
    confidence = f"Confidence: {finding.confidence}."
    saved = finding.recoverable_ms_per_step
    if saved is None:
        reason = _line(str(finding.evidence.get(_REASON, ""))).rstrip(".")
        return f"Savings not known: {reason}. {confidence}" if reason else confidence
    if saved <= 0:
        return confidence
    made_of = parts(finding, analysis)
    return f"{saves(finding, analysis)}{f': {made_of}' if made_of else ''}. {confidence}"


def saves(finding: Finding, analysis: Analysis) -> str:
    """Return `Saves about 12.0 ms per step (21 %)`; "" where nothing is known to be saved."""
    saved = finding.recoverable_ms_per_step
    if saved is None or saved <= 0:
        return ""
    step_ms = real_step_ms(analysis)
    share = finding.recoverable_percent
    share = 100 * saved / step_ms if 0 < saved <= step_ms else share
    percent = "" if share is None else f" ({figures.percent(share, 100)})"
    about = "up to" if _at_best(finding) else "about"
    return f"Saves {about} {figures.milliseconds(saved, beside=step_ms)} ms {_per(analysis)}{percent}"


def parts(finding: Finding, analysis: Analysis) -> str:
    """Return what a saving is made of: parts of a quarter or more by name, the others summed as indirect."""
    known = {name: ms for name, ms in list(finding.parts_ms.items())[:_MOST_LINES] if ms > 0}
    total = sum(known.values())
    step_ms = real_step_ms(analysis)
    main = {name: ms for name, ms in known.items() if ms >= _MAIN_PART * total}
    words = [
        f"{figures.milliseconds(ms, beside=step_ms)} ms {_PARTS.get(name) or _line(name.replace('_', ' '))}"
        for name, ms in main.items()
    ]
    indirect = total - sum(main.values())
    shown = figures.milliseconds(indirect, beside=step_ms)
    if shown.strip("-0.<") and indirect > 0:
        words.append(f"{shown} ms indirect")
    return ", ".join(words)


def _at_best(finding: Finding) -> bool:
    """Return whether some of it must stay: no job of several devices is without communication."""
    return finding.code == "communication-bound"


def where(finding: Finding) -> str:
    """Return a finding's place in the step and the code, "" where none is known or its title says it."""
    return _line(finding.place) if finding.place and finding.place not in finding.title else ""


def or_instead(finding: Finding, analysis: Analysis) -> str:
    """Return which other findings could be fixed instead of this one, "" where there is none."""
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


def evidence_of(finding: Finding) -> list[str]:
    """Return a finding's evidence in words, without what its savings say."""
    return evidence_items({key: value for key, value in finding.evidence.items() if key not in _SAID_ELSEWHERE})


def finding_lines(finding: Finding, analysis: Analysis) -> list[str]:
    """Return all that is said of a finding between its title and its advice."""
    evidence, place = evidence_of(finding), where(finding)
    lines = (
        savings(finding, analysis),
        f"Where: {place}" if place else "",
        or_instead(finding, analysis),
        f"Evidence: {'; '.join(evidence)}" if evidence else "",
    )
    return [line for line in lines if line]


def _trusted(analysis: Analysis) -> bool:
    return not any(validity.code in UNTRUSTED_CODES for validity in analysis.validity)


def path_lines(analysis: Analysis, finding: Finding) -> list[str]:
    """Return the fixes in order, each with the step after it; none of a single one, or if figures disagree."""
    saved = finding.recoverable_ms_per_step or 0.0
    if finding.severity == "info" or len(analysis.next) < 2 or not first_of_path(finding, analysis):
        return []
    if not _before_and_after(finding, analysis, saved)[2]:
        return []
    longest = max((fix.step_ms for fix in analysis.next), default=0.0)
    return [
        f"{_who(fix.code, fix.ranks, fix.cause)}: step {figures.milliseconds(fix.step_ms, beside=longest)} ms, "
        f"then limited by {_limit(fix.then)}"
        for fix in analysis.next[:_MOST_LINES]
    ]


def explained_lines(analysis: Analysis, *, unexplained_only: bool = False) -> list[str]:
    """Return each bucket that takes much of a step: how much, and what explains it or that nothing does."""
    step_ms = analysis.steps.mean_ms
    return [
        f"{_bucket(bucket.bucket)} {figures.milliseconds(bucket.ms, beside=step_ms)} ms "
        f"({figures.percent(bucket.ms, step_ms)}): {_explanation(bucket, analysis)}"
        for bucket in analysis.explained[: len(LABELS)]
        if bucket.unexplained_ms > 0 or not unexplained_only
    ]


def _explanation(bucket: Explained, analysis: Analysis) -> str:
    words = [", ".join(_line(code) for code in bucket.by[:_MOST_LINES])] if bucket.by else []
    unexplained = bucket.unexplained_ms if bucket.by or bucket.note else bucket.unexplained_ms or bucket.ms
    if bucket.note and not (unexplained > 0 and bucket.note.startswith("no finding explains")):
        words.append(_line(bucket.note))
    if unexplained > 0 and bucket.bucket == "communication_transfer" and one_rank_of_several(analysis):
        words.append("communication, or waiting for ranks that were not recorded")
    elif unexplained > 0:
        ms = figures.milliseconds(unexplained, beside=analysis.steps.mean_ms)
        words.append("no known cause" if unexplained >= 0.99 * bucket.ms else f"{ms} ms have no known cause")
    return "; ".join(words)


def doubts(analysis: Analysis, *, missing: bool = True) -> list[tuple[str, str]]:
    """Return why to trust the figures less, and which are missing: (code or which figure, in words).

    Args:
        analysis: what is reported.
        missing: also say why step times are missing, and what each kind of recording cost.
    """
    explained = any(bucket.unexplained_ms > 0 for bucket in analysis.explained)
    said = [
        (_line(warning.code), _overhead(analysis) or _line(warning.message))
        if warning.code == "profiler-overhead"
        else (_line(warning.code), _line(warning.message))
        for warning in analysis.validity
        # The lines below the table say what is unexplained.
        if not (warning.code == "unexplained" and explained)
    ]
    if not missing:
        return said
    steps = analysis.steps
    said += [tuple(line.split(": ", 1)) for line in overhead_lines(analysis)]  # type: ignore[misc]  # two parts
    for key, reason in list(steps.reasons.items())[:_MOST_REASONS]:
        # Where it was measured, nobody misses the estimate.
        if getattr(steps, key, None) is None and steps.unprofiled_mean_ms is None:
            said.append((f"No step time {_STEP_TIMES.get(key, _line(key))} without profiling", _line(reason)))
    return said


def _overhead(analysis: Analysis) -> str:
    """Say how much the profiler slows the job, where that was measured; else ""."""
    steps = analysis.steps
    if not steps.unprofiled_mean_ms or steps.mean_ms <= steps.unprofiled_mean_ms:
        return ""
    factor = steps.mean_ms / steps.unprofiled_mean_ms
    return f"The profiler slows this job {factor:.1f} {figures.TIMES}; amounts are for the unprofiled step."


def _bucket(name: str) -> str:
    return LABELS.get(name, _line(name))


def _limit(bucket: str) -> str:
    return _LIMITS.get(bucket) or _bucket(bucket)


def _line(text: str) -> str:
    return plain_names(one_line(text))[:LONGEST_TEXT]
