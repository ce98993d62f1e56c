"""Check gpudiag's output for a recording against an expectation, and return a verdict.

An expectation is a JSON object with the keys of `Expectation`; only `name` and `path` are required. Each check has a
kind (`misleading` or `incomplete`). If a `misleading` check fails, the output is wrong, whatever the results of other
checks. If only `incomplete` checks fail, the output is partly right. The output is silent if it has no finding although
one is expected, and failed if there is no analysis.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

Verdict = Literal["right", "partly", "wrong", "silent", "failed"]
VERDICTS: tuple[Verdict, ...] = ("right", "partly", "wrong", "silent", "failed")

#: A range [low, high]; null for no bound.
Range = tuple[float | None, float | None]


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Expected output for one recording. Phrases are regular expressions, and paths have the form of `value_at`.

    Attributes:
        path: the recording below the root, a directory or a packed file.
        light: packed kernel-only traces of the same run, if any.
        run: the run record, if any: its file, and the keys that lead to it in the file.
        why: the reason for the expectation, for readers.
        codes: right codes of the main finding; None for no check. For other codes, see `most_percent`.
        silent_is_right: no finding, or no analysis with an error as in `says`, is right too.
        causes, ranks, place: right causes, ranks and a phrase of the source location of the main finding.
        ms, percent: range of its savings per step.
        most_percent: largest savings that a finding with another code may promise.
        not_codes: codes that no finding may have.
        validity, not_validity: codes of required and of forbidden warnings.
        headline: phrases, one of which the report's headline must have; the main finding is then not checked.
        says, never: phrases that the report must have, and must not have.
        fields, not_fields: path → right values, path → wrong values.
        ranges: path → range of a number.
        buckets_percent: bucket → range of its share of the first device's step.
    """

    name: str
    path: str
    light: str = ""
    run: tuple[str, ...] = ()
    why: str = ""
    codes: tuple[str, ...] | None = None
    silent_is_right: bool = False
    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    place: str = ""
    ms: Range | None = None
    percent: Range | None = None
    most_percent: float | None = None
    not_codes: tuple[str, ...] = ()
    validity: tuple[str, ...] = ()
    not_validity: tuple[str, ...] = ()
    headline: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    fields: dict[str, tuple[str, ...]] = {}
    not_fields: dict[str, tuple[str, ...]] = {}
    ranges: dict[str, Range] = {}
    buckets_percent: dict[str, Range] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """gpudiag's output for a recording: analysis as JSON and report as text, or the reason why there is none."""

    analysis: dict[str, Any] | None = None
    report: str = ""
    error: str = ""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one recording.

    `misleading` and `incomplete` describe the failed checks; `first` summarizes the main finding.
    """

    name: str
    verdict: Verdict
    first: str = ""
    misleading: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()


def main_finding(findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the finding with which a report begins, or None if there are no findings.

    It is the first finding of a severity above `info`, otherwise `compute-bound`, otherwise the first finding.
    """
    worthwhile = [finding for finding in findings if finding["severity"] != "info"]
    plain = [finding for finding in findings if finding["code"] == "compute-bound"]
    return next(iter([*worthwhile, *plain, *findings]), None)


def score(expected: Expectation, said: Said) -> Score:
    """Return the verdict on gpudiag's output for one recording."""
    if said.analysis is None:
        right = expected.silent_is_right and all(matches(text, said.error) for text in expected.says)
        return Score(name=expected.name, verdict="right" if right else "failed", first=said.error[:80])
    findings: list[dict[str, Any]] = said.analysis["findings"]
    main = main_finding(findings)
    misleading = [*_wrong_findings(expected, findings), *_wrong_words(expected, said)]
    silent = main is None
    headline = said.report.partition("Where a step's time goes")[0]  # the part before the report's first table
    by_headline = any(matches(text, headline) for text in expected.headline)
    if expected.codes is not None and main is not None and not by_headline:
        misleading += _wrong_main(expected, main)
    incomplete = [*_missing(expected, said), *_amounts(expected, main)]
    if expected.headline and not by_headline:
        incomplete.append(f"the headline does not say {' or '.join(expected.headline)}")
    verdict: Verdict = "right"
    if misleading:
        verdict = "wrong"
    elif silent and expected.codes and not expected.silent_is_right and not by_headline:
        verdict = "silent"
    elif incomplete:
        verdict = "partly"
    return Score(
        name=expected.name,
        verdict=verdict,
        first=_short(main),
        misleading=tuple(misleading),
        incomplete=tuple(incomplete),
    )


def matches(pattern: str, text: str) -> bool:
    """Return True if a regular expression matches anywhere, across line breaks and regardless of case."""
    return re.search(pattern, " ".join(text.split()), re.IGNORECASE) is not None


def value_at(analysis: dict[str, Any], path: str) -> Any:
    """Return the value at a path such as `devices.0.name`, or None if it is absent."""
    value: Any = analysis
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(key)
        else:
            return None
    return value


def _wrong_main(expected: Expectation, main: dict[str, Any]) -> list[str]:
    """Describe what is wrong with the main finding: its code, cause or ranks."""
    if main["code"] not in (expected.codes or ()):
        return [f"first is {main['code']}, not {' or '.join(expected.codes or ()) or 'nothing'}"]
    wrong = []
    if expected.causes and main["cause"] not in expected.causes:
        wrong.append(f"the cause is {main['cause']}, not {' or '.join(expected.causes)}")
    if expected.ranks is not None and tuple(main["ranks"]) != expected.ranks:
        wrong.append(f"of ranks {main['ranks']}, not {list(expected.ranks)}")
    return wrong


def _wrong_findings(expected: Expectation, findings: list[dict[str, Any]]) -> list[str]:
    """Describe forbidden findings, and findings above `info` that promise too much.

    A compiler's savings are `info` at any size, because they show no fault of the program.
    """
    wrong = [f"finds {finding['code']}" for finding in findings if finding["code"] in expected.not_codes]
    if expected.most_percent is not None:
        wrong += [
            f"{finding['code']} promises {finding['recoverable_percent']:.0f} %"
            for finding in findings
            if finding["code"] not in (expected.codes or ())
            and finding["severity"] != "info"
            and (finding["recoverable_percent"] or 0.0) > expected.most_percent
        ]
    return wrong


def _wrong_words(expected: Expectation, said: Said) -> list[str]:
    """Describe misleading phrases, warnings and values."""
    analysis = said.analysis or {}
    codes = _validity(analysis)
    wrong = [f"says {text}" for text in expected.never if matches(text, said.report)]
    wrong += [f"warns of {code}" for code in expected.not_validity if code in codes]
    wrong += [
        f"{path} is {value_at(analysis, path)}"
        for path, values in expected.not_fields.items()
        if value_at(analysis, path) in values
    ]
    return wrong


def _missing(expected: Expectation, said: Said) -> list[str]:
    """Describe required warnings, phrases and values that are missing or out of range."""
    analysis = said.analysis or {}
    codes = _validity(analysis)
    missing = [f"no {code}" for code in expected.validity if code not in codes]
    missing += [f"does not say {text}" for text in expected.says if not matches(text, said.report)]
    for path, values in expected.fields.items():
        if (value := value_at(analysis, path)) not in values:
            missing.append(f"{path} is {value}, not {' or '.join(values)}")
    for path, span in expected.ranges.items():
        if not _within(value_at(analysis, path), span):
            missing.append(f"{path} is {value_at(analysis, path)}, not in {_range(span)}")
    for bucket, span in expected.buckets_percent.items():
        device = analysis["devices"][0]
        share = 100 * device["buckets_ms"][bucket] / device["step_ms"]
        if not _within(share, span):
            missing.append(f"{bucket} is {share:.0f} %, not in {_range(span)}")
    return missing


def _amounts(expected: Expectation, main: dict[str, Any] | None) -> list[str]:
    """Describe a wrong source location or amount of the main finding."""
    if main is None:
        return []
    wrong = []
    if expected.place and not matches(expected.place, f"{main['title']} {main['place']} {main['evidence']}"):
        wrong.append(f"does not name {expected.place}")
    for span, key, unit in (
        (expected.ms, "recoverable_ms_per_step", "ms"),
        (expected.percent, "recoverable_percent", "%"),
    ):
        if span is not None and not _within(main[key], span):
            wrong.append(f"{main[key] if main[key] is None else round(main[key], 1)} {unit}, not in {_range(span)}")
    return wrong


def _validity(analysis: dict[str, Any]) -> set[str]:
    """Return the codes of warnings without their rule: `cannot-tell` for `cannot-tell:RULE`."""
    return {warning["code"].partition(":")[0] for warning in analysis.get("validity", [])}


def _within(value: Any, span: Range) -> bool:
    low, high = span
    return isinstance(value, int | float) and (low is None or value >= low) and (high is None or value <= high)


def _range(span: Range) -> str:
    return " to ".join("…" if bound is None else f"{bound:g}" for bound in span)


def _short(main: dict[str, Any] | None) -> str:
    if main is None:
        return "no finding"
    amount = main["recoverable_ms_per_step"]
    words = [main["code"], main["cause"] or "", "" if amount is None else f"{amount:.1f} ms"]
    return " ".join(word for word in words if word)
