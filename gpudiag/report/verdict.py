"""Describe the verdict and the findings for all kinds of reports: savings, location, advice and order of fixes.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import UNTRUSTED_CODES, Analysis, Explained, Finding, Severity
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.evidence import evidence_items
from gpudiag.report.header import overhead_lines, real_step_ms, unit_of
from gpudiag.report.headline import Headline, headline_of, next_step, nothing_found, one_rank_of_several
from gpudiag.report.kernel_names import plain_names
from gpudiag.report.palette import LABELS

#: Maximum length of a text from a file. Diagnosis rules write shorter texts.
LONGEST_TEXT = 400
PATH_HEADING = "Fixes in order:"
ALTERNATIVE = "Alternative: "
#: Key of the evidence that states why a finding's savings are unknown.
_REASON = "reason"
#: Keys of the evidence whose values the line with the savings shows.
_SHOWN_ELSEWHERE = frozenset({_REASON, "step_ms_now", "step_ms_if_fixed"})
_MOST_REASONS = 4
_MOST_LINES = 8
#: Words for each field of `Steps` that may be unknown.
_STEP_TIMES = {"unprofiled_mean_ms": "not measured", "corrected_mean_ms": "not estimated"}
#: Words for the limit of a step after a fix, by the bucket that then has the largest share of the step.
_LIMITS = {
    "communication_transfer": "communication",
    "communication_wait": "waiting for other ranks",
    "copy": "copies",
    "input": "data loading",
    "sync": "synchronization",
    "launch": "kernel launches",
    "idle": "idle time",
}
#: The savings of a finding and the list of next fixes agree if their step times after the fix differ by at most this
#: share of the step time now.
_AGREE = 0.1
#: Components with at least this share of the savings are named. The other components are summed as `indirect`.
_MAIN_PART = 0.25
_PARTS = {"exposed": "not overlapped with compute", "CPU calls": "in CPU calls"}
_SEPARATOR = " · "


class ReportVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a report. Texts are one printable line each, or "".

    Attributes:
        headline: the finding that leads the report; None if none is worth acting on.
        gain: step time before and after the fix.
        parts: components of the savings.
        where: location in the step and the code.
        instead: a sentence with the findings that could be fixed instead.
        steps: actions for the user, most useful first.
        advised: True if `steps` are the finding's advice; False if they describe what to record next.
        path: recommended order of fixes, if there are several.
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


def verdict_of(analysis: Analysis) -> ReportVerdict:
    """Return the verdict on an analysis. With an untrusted recording, it advises to record again instead."""
    headline = headline_of(analysis)
    if headline is None:
        return ReportVerdict(title=nothing_found(analysis), steps=(next_step(analysis),))
    finding = headline.finding
    trusted = not any(warning.code in UNTRUSTED_CODES for warning in analysis.validity)
    advice = tuple(map(_line, headline.advice)) if trusted else ()
    return ReportVerdict(
        headline=headline,
        severity=finding.severity,
        title=title_of(finding, headline.title),
        gain=gain(finding, analysis),
        parts=parts(finding, analysis),
        confidence=finding.confidence,
        where=where(finding),
        instead=or_instead(finding, analysis),
        steps=advice or (next_step(analysis),),
        advised=bool(advice),
        path=tuple(path_lines(analysis, finding)) if trusted else (),
    )


def in_few_words(analysis: Analysis) -> str:
    """Return the headline in a form for a table cell: `straggler (rank 2), saves about 26.1 ms per step`."""
    headline = headline_of(analysis)
    if headline is None:
        return "no finding"
    finding = headline.finding if headline.cause is None else headline.cause
    saved = saves(headline.finding, analysis).partition(" (")[0]
    ranks = finding.ranks if len(finding.ranks) < len(analysis.ranks_present) else ()
    name = _named(finding.code, ranks, None)
    return f"{name}, {saved[:1].lower()}{saved[1:]}" if saved else name


def other_findings(analysis: Analysis, verdict: ReportVerdict) -> list[Finding]:
    """Return the findings that the verdict does not mention."""
    headline = verdict.headline
    mentioned = () if headline is None else (headline.finding, headline.cause)
    return [finding for finding in analysis.findings if not any(finding is other for other in mentioned)]


def title_of(finding: Finding, title: str = "") -> str:
    """Return a finding's title with a capital letter, unless it begins with the name of a file."""
    words = _line(title or finding.title or finding.code)
    if finding.source is not None and words.startswith(_line(finding.source.place)):
        return words
    return words[:1].upper() + words[1:]


def about(finding: Finding) -> str:
    """Return a finding's code, severity, ranks and cause in one line."""
    parts = [_line(finding.code), finding.severity]
    parts += [figures.ranks(finding.ranks)] if finding.ranks else []
    parts += [f"cause: {_line(finding.cause)}"] if finding.cause else []
    return _SEPARATOR.join(parts)


def gain(finding: Finding, analysis: Analysis) -> str:
    """Return `57.1 → 31.3 ms per step (-45 %), then limited by communication`.

    If the savings are unknown, return the reason. If the fix saves nothing, return "".
    """
    saved = finding.recoverable_ms_per_step
    if saved is None:
        reason = _reason(finding)
        return f"not known: {reason}" if reason else "not known"
    if saved <= 0:
        return ""
    before_ms, after_ms, limit = _before_and_after(finding, analysis, saved)
    if after_ms is None:
        return f"about {figures.milliseconds(saved)} ms {_per_unit(analysis)}"
    at_best = " at best" if _is_upper_bound(finding) else ""
    change = f" ({figures.MINUS}{figures.percent(before_ms - after_ms, before_ms)})"
    limited = f", then limited by {_limit_words(limit)}" if limit else ""
    after = figures.milliseconds(after_ms, beside=before_ms)
    return f"{figures.milliseconds(before_ms)} → {after} ms {_per_unit(analysis)}{at_best}{change}{limited}"


def _reason(finding: Finding) -> str:
    return _line(str(finding.evidence.get(_REASON, ""))).rstrip(".")


def _before_and_after(finding: Finding, analysis: Analysis, saved: float) -> tuple[float, float | None, str]:
    """Return the step time in ms now, that after the fix (`saved` ms less), and the bucket that then limits the step.

    The step time after the fix is None if it is implausible. The bucket is "" if it is unknown, as it is for every fix
    but the first in `analysis.next`.
    """
    before_ms = real_step_ms(analysis)
    if not 0 < saved < before_ms:
        return before_ms, None, ""
    after_ms = before_ms - saved
    if _is_first_fix(finding, analysis):
        fix = analysis.next[0]
        if abs(fix.step_ms - after_ms) <= _AGREE * before_ms and 0 < fix.step_ms < before_ms:
            return before_ms, after_ms, fix.then
    return before_ms, after_ms, ""


def _is_first_fix(finding: Finding, analysis: Analysis) -> bool:
    return bool(analysis.next) and (analysis.next[0].code, analysis.next[0].ranks) == (finding.code, finding.ranks)


def _per_unit(analysis: Analysis) -> str:
    unit = unit_of(analysis)
    return f"per {unit}" if unit != "recording" else "of the recording"


def savings(finding: Finding, analysis: Analysis) -> str:
    """Return a finding's savings with their components and confidence."""
    confidence = f"Confidence: {finding.confidence}."
    saved = finding.recoverable_ms_per_step
    if saved is None:
        reason = _reason(finding)
        return f"Savings not known: {reason}. {confidence}" if reason else confidence
    if saved <= 0:
        return confidence
    components = parts(finding, analysis)
    return f"{saves(finding, analysis)}{f': {components}' if components else ''}. {confidence}"


def saves(finding: Finding, analysis: Analysis) -> str:
    """Return `Saves about 12.0 ms per step (21 %)`; "" if no savings are known."""
    saved = finding.recoverable_ms_per_step
    if saved is None or saved <= 0:
        return ""
    step_ms = real_step_ms(analysis)
    about = "up to" if _is_upper_bound(finding) else "about"
    percent = _share(finding, saved, step_ms)
    return f"Saves {about} {figures.milliseconds(saved, beside=step_ms)} ms {_per_unit(analysis)}{percent}"


def saved_words(finding: Finding, analysis: Analysis) -> str:
    """Return `12.0 ms (21 %)`; "" if no savings are known."""
    saved = finding.recoverable_ms_per_step
    if saved is None or saved <= 0:
        return ""
    step_ms = real_step_ms(analysis)
    return f"{figures.milliseconds(saved, beside=step_ms)} ms{_share(finding, saved, step_ms)}"


def _share(finding: Finding, saved: float, step_ms: float) -> str:
    """Return the savings as a share of the step, like ` (21 %)`; "" if the share is unknown.

    Savings in a recorded step may exceed the unprofiled step `step_ms`; the share is then that of the recorded step.
    """
    share = 100 * saved / step_ms if saved <= step_ms else finding.recoverable_percent
    return "" if share is None else f" ({figures.percent(share, 100)})"


def parts(finding: Finding, analysis: Analysis) -> str:
    """Return the components of the savings. The smaller components are summed as `indirect`."""
    parts_ms = {name: ms for name, ms in list(finding.parts_ms.items())[:_MOST_LINES] if ms > 0}
    total_ms = sum(parts_ms.values())
    step_ms = real_step_ms(analysis)
    main_ms = {name: ms for name, ms in parts_ms.items() if ms >= _MAIN_PART * total_ms}
    words = [
        f"{figures.milliseconds(ms, beside=step_ms)} ms {_PARTS.get(name) or _line(name.replace('_', ' '))}"
        for name, ms in main_ms.items()
    ]
    indirect_ms = total_ms - sum(main_ms.values())
    indirect = figures.milliseconds(indirect_ms, beside=step_ms)
    # A figure with only these characters, such as `0.00`, is not worth mentioning.
    if indirect.strip("-0.<") and indirect_ms > 0:
        words.append(f"{indirect} ms indirect")
    return ", ".join(words)


def _is_upper_bound(finding: Finding) -> bool:
    """Return whether part of the savings is unreachable: several devices cannot train without communication."""
    return finding.code == "communication-bound"


def where(finding: Finding) -> str:
    """Return a finding's location in the step and the code; "" if it is unknown or part of the title."""
    return _line(finding.place) if finding.place and finding.place not in finding.title else ""


def or_instead(finding: Finding, analysis: Analysis) -> str:
    """Return a sentence with the findings that could be fixed instead of this one; "" if there are none."""
    if not finding.instead:
        return ""
    others = [_alternative(code, analysis) for code in dict.fromkeys(finding.instead)]
    enough = "fixing one of the two is enough" if len(others) == 1 else "fixing one of them is enough"
    return f"{ALTERNATIVE}{' or '.join(others)}; {enough}."


def _alternative(code: str, analysis: Analysis) -> str:
    other = next((finding for finding in analysis.findings if finding.code == code), None)
    saved = other.recoverable_ms_per_step if other is not None else None
    if other is None or saved is None:
        return _line(code)
    ms = figures.milliseconds(saved, beside=analysis.steps.mean_ms)
    return f"{_named(code, other.ranks, other.cause)}, which saves about {ms} ms"


def _named(code: str, ranks: Sequence[int], cause: str | None) -> str:
    """Return `straggler (rank 2 · input)`."""
    parts = ([figures.ranks(ranks)] if ranks else []) + ([_line(cause)] if cause else [])
    return f"{_line(code)}{f' ({_SEPARATOR.join(parts)})' if parts else ''}"


def evidence_of(finding: Finding) -> list[str]:
    """Return a finding's evidence in words, without the figures of the line with the savings."""
    return evidence_items({key: value for key, value in finding.evidence.items() if key not in _SHOWN_ELSEWHERE})


def finding_lines(finding: Finding, analysis: Analysis) -> list[str]:
    """Return the lines between a finding's title and its advice."""
    evidence, location = evidence_of(finding), where(finding)
    lines = (
        savings(finding, analysis),
        f"Where: {location}" if location else "",
        or_instead(finding, analysis),
        f"Evidence: {'; '.join(evidence)}" if evidence else "",
    )
    return [line for line in lines if line]


def verdict_lines(verdict: ReportVerdict) -> list[str]:
    """Return the lines between the verdict's title and its steps in Markdown and on the page."""
    lines = (
        f"Gain: {verdict.gain}" if verdict.gain else "",
        f"Saved time: {verdict.parts}." if verdict.parts else "",
        f"Confidence: {verdict.confidence}." if verdict.confidence else "",
        f"Where: {verdict.where}" if verdict.where else "",
        verdict.instead,
    )
    return [line for line in lines if line]


def path_lines(analysis: Analysis, finding: Finding) -> list[str]:
    """Return a line for each recommended fix, in order, with the step time after the fix.

    The list is empty if there is a single fix, if `finding` has the severity `info` or is not the first fix, or if the
    list of fixes contradicts its savings.
    """
    if finding.severity == "info" or len(analysis.next) < 2 or not _is_first_fix(finding, analysis):
        return []
    if not _before_and_after(finding, analysis, finding.recoverable_ms_per_step or 0.0)[2]:
        return []
    longest = max(fix.step_ms for fix in analysis.next)
    return [
        f"{_named(fix.code, fix.ranks, fix.cause)}: step {figures.milliseconds(fix.step_ms, beside=longest)} ms, "
        f"then limited by {_limit_words(fix.then)}"
        for fix in analysis.next[:_MOST_LINES]
    ]


def explained_lines(analysis: Analysis) -> list[str]:
    """Return a line for each large bucket, with its time and the findings that explain it."""
    step_ms = analysis.steps.mean_ms
    return [
        f"{_bucket_label(bucket.bucket)} {figures.milliseconds(bucket.ms, beside=step_ms)} ms "
        f"({figures.percent(bucket.ms, step_ms)}): {_explanation(bucket, analysis)}"
        for bucket in analysis.explained[: len(LABELS)]
    ]


def _explanation(bucket: Explained, analysis: Analysis) -> str:
    """Return the findings that explain a bucket, its note, and its time without known cause."""
    words = [f"explained by {', '.join(map(_line, bucket.by[:_MOST_LINES]))}"] if bucket.by else []
    # A bucket with neither finding nor note is unexplained as a whole, even if a file states no unexplained time.
    unexplained = bucket.unexplained_ms if bucket.by or bucket.note else bucket.unexplained_ms or bucket.ms
    # A note that "no finding explains" the bucket would repeat the words for unexplained time.
    if bucket.note and not (unexplained > 0 and bucket.note.startswith("no finding explains")):
        words.append(_line(bucket.note))
    if unexplained > 0 and bucket.bucket == "communication_transfer" and one_rank_of_several(analysis):
        words.append("communication, or waits for ranks that were not recorded")
    elif unexplained > 0:
        # At 99 %, the explained part is only rounding.
        ms = figures.milliseconds(unexplained, beside=analysis.steps.mean_ms)
        words.append("no known cause" if unexplained >= 0.99 * bucket.ms else f"{ms} ms without known cause")
    return "; ".join(words)


def doubts(analysis: Analysis) -> list[tuple[str, str]]:
    """Return (code or topic, message) of warnings, of the overhead of profiling, and of missing step times."""
    # The lines below the table already report the unexplained time.
    explained = any(bucket.unexplained_ms > 0 for bucket in analysis.explained)
    reasons = [
        (_line(warning.code), (warning.code == "profiler-overhead" and _overhead(analysis)) or _line(warning.message))
        for warning in analysis.validity
        if not (warning.code == "unexplained" and explained)
    ]
    for line in overhead_lines(analysis):
        topic, _, times = line.partition(": ")
        reasons.append((topic, times))
    steps = analysis.steps
    if steps.unprofiled_mean_ms is None:  # a measured step needs no estimate
        reasons += [
            (f"Step time without profiling {_STEP_TIMES.get(key, _line(key))}", _line(reason))
            for key, reason in list(steps.reasons.items())[:_MOST_REASONS]
            if getattr(steps, key, None) is None
        ]
    return reasons


def _overhead(analysis: Analysis) -> str:
    """Return a sentence about the slowdown by the profiler; "" if the slowdown was not measured."""
    steps = analysis.steps
    if not steps.unprofiled_mean_ms or steps.mean_ms <= steps.unprofiled_mean_ms:
        return ""
    factor = steps.mean_ms / steps.unprofiled_mean_ms
    return f"The profiler slows this job {factor:.1f} {figures.TIMES}; amounts are for the unprofiled step."


def _bucket_label(name: str) -> str:
    return LABELS.get(name, _line(name))


def _limit_words(bucket: str) -> str:
    return _LIMITS.get(bucket) or _bucket_label(bucket)


def _line(text: str) -> str:
    return plain_names(one_line(text))[:LONGEST_TEXT]
