"""Describe a run for the short report: location, shares beside the bars, other findings, and commands for more.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from gpudiag.model.analysis import BUCKETS, FINDING_CODES, VALIDITY_CODES, Analysis, Finding, Severity, Wait
from gpudiag.model.run import OWN_STRATEGY
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.header import compute_rate, grid_sizes, real_step_ms, recorded_steps_differ, what_ran
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import RankRow, duration
from gpudiag.report.verdict import ReportVerdict, other_findings, saved_words, where

#: Maximum numbers of further findings and of warnings in the short report.
_FEW_FINDINGS, _FEW_WARNINGS = 4, 5
#: The buckets named beside a bar: their smallest percentage of the step, and their maximum number.
_NOTED_PERCENT, _NOTED_BUCKETS = 5, 2
#: A rank waits mostly for one other rank if at least this share of its wait is for that rank. A collective is named if
#: it takes at least this share of all transfer time.
_MOSTLY = 0.6
#: Maximum number of characters of the paths in a command; longer paths become `…`.
_LONGEST_PATHS = 120
_LONGEST_WORD = 40
#: Findings about the host, for which a recording by gpudiag names the line of the source.
_OF_THE_HOST = frozenset({"input-bound", "straggler", "host-stall", "host-sync", "launch-bound", "slow-copy"})
_FILE_AND_LINE = {"pytorch": "gpudiag profile -- COMMAND names file and line"}
_SEPARATOR = " · "


class OtherItem(msgspec.Struct, frozen=True):
    """A finding in the line about further findings: its name, its savings in words, and its severity."""

    name: str
    saved: str
    severity: Severity


def gain(verdict: ReportVerdict) -> str:
    """Return gain and confidence. The reason of an unknown gain is omitted, because the advice says what to record."""
    amount = "not known" if verdict.gain.startswith("not known") else verdict.gain
    return "; ".join(filter(None, (amount, f"confidence: {verdict.confidence}" if verdict.confidence else "")))


def title_line(analysis: Analysis) -> str:
    """Return workload, strategy (unless it is user-defined), devices, and the grid of a divided job in one line."""
    if analysis.source.strategy == OWN_STRATEGY:
        source = msgspec.structs.replace(analysis.source, strategy=None)
        analysis = msgspec.structs.replace(analysis, source=source)
    return _SEPARATOR.join(filter(None, (what_ran(analysis), grid_sizes(analysis))))


def utilization(analysis: Analysis) -> str:
    """Return `MFU 23.1 %`; "" if FLOPs or the peak are unknown."""
    rate = compute_rate(analysis)
    if rate is None or rate.mfu_percent is None:
        return ""
    return f"MFU {'at least ' * bool(rate.unknown)}{figures.rate(rate.mfu_percent)} %"


def location(verdict: ReportVerdict, analysis: Analysis) -> list[str]:
    """Return ranks, source line, operators and collective of the verdict's finding, as far as its title lacks them."""
    if verdict.headline is None:
        return []
    finding = verdict.headline.finding
    parts = [
        _ranks(finding, verdict.title, analysis),
        _function(finding),
        where(finding),
        _collective(finding, analysis),
    ]
    # Without a source line, say how to get one, unless gpudiag made this recording.
    known = finding.source is not None or ".py:" in finding.place or bool(analysis.lines) or bool(analysis.timed)
    if finding.code in _OF_THE_HOST and finding.place and not known:
        parts.append(_FILE_AND_LINE.get(analysis.framework, ""))
    return [part for part in parts if part]


def _ranks(finding: Finding, title: str, analysis: Analysis) -> str:
    """Return the finding's ranks in words; "" if the title has them, or if only one rank was recorded."""
    present = set(analysis.ranks_present)
    if len(present) < 2 or not finding.ranks or re.search(r"\branks?\b", title, re.IGNORECASE):
        return ""
    if set(finding.ranks) < present or len(present) < analysis.world_size:
        return figures.ranks(finding.ranks)
    return "both ranks" if len(present) == 2 else f"all {len(present)} ranks"


def _function(finding: Finding) -> str:
    """Return the function of the finding's source line; "" if it is unknown or part of the title."""
    source = finding.source
    if source is None or not source.function or source.function in finding.title:
        return ""
    return f"in {one_line(source.function)[:_LONGEST_WORD]}()"


def _collective(finding: Finding, analysis: Analysis) -> str:
    """Return `mostly all-reduce of 411 MB` for a finding about communication; "" if no collective takes most time."""
    if finding.code != "communication-bound":
        return ""
    times = [duration(call.per_step) * duration(call.transfer_us) for call in analysis.collectives]
    longest = max(range(len(times)), key=lambda index: times[index], default=None)
    if longest is None or times[longest] < _MOSTLY * sum(times) or analysis.collectives[longest].size_bytes is None:
        return ""
    call = analysis.collectives[longest]
    return f"mostly {one_line(call.operation)[:_LONGEST_WORD].replace('_', '-')} of {figures.size(call.size_bytes)}"


def bar_note(row: RankRow, waits: Sequence[Wait]) -> str:
    """Return the largest buckets with their share of the rank's step: `50 % wait for rank 2, 47 % compute`."""
    if row.step_ms <= 0:
        return ""
    shares = {bucket: 100 * row.buckets_ms[bucket] / row.step_ms for bucket in BUCKETS}
    large = [bucket for bucket in BUCKETS if shares[bucket] >= _NOTED_PERCENT]
    largest = sorted(large, key=lambda bucket: -shares[bucket])[:_NOTED_BUCKETS]
    words = [f"{figures.percent(shares[bucket], 100)} {LABELS[bucket]}" for bucket in largest]
    if "communication_wait" in largest:
        words[largest.index("communication_wait")] += _for_rank(row, waits)
    return ", ".join(words)


def _for_rank(row: RankRow, waits: Sequence[Wait]) -> str:
    """Return ` for rank 2` if the row's rank waited mostly for one other rank, else ""."""
    by_rank: dict[int, float] = defaultdict(float)
    for wait in waits:
        if wait.rank == row.rank:
            by_rank[wait.on_rank] += duration(wait.ms_per_step)
    longest = max(by_rank, key=lambda rank: by_rank[rank], default=None)
    if longest is None or by_rank[longest] < _MOSTLY * row.buckets_ms["communication_wait"]:
        return ""
    return f" for rank {longest}"


def bars_note(analysis: Analysis) -> str:
    """Return how much longer the recorded steps in the bars are than steps without the profiler; "" if they are not."""
    real, recorded = real_step_ms(analysis), analysis.steps.mean_ms
    if not recorded_steps_differ(analysis):
        return ""
    if recorded < real:  # not by the profiler, which only makes steps longer, so that no factor is given
        return "Bars: recorded steps, which were shorter than the others."
    return f"Bars: recorded steps, {recorded / real:.1f} {figures.TIMES} as long as without the profiler."


def other_items(analysis: Analysis, verdict: ReportVerdict) -> tuple[list[OtherItem], int]:
    """Return the largest findings that the verdict does not mention, and the number of further such findings."""
    alternatives = () if verdict.headline is None else verdict.headline.finding.instead
    omitted = {*alternatives, "compute-bound"}  # the bars show the share of compute
    others = [finding for finding in other_findings(analysis, verdict) if finding.code not in omitted]
    shown = [
        OtherItem(_name(finding, analysis), saved_words(finding, analysis), finding.severity)
        for finding in others[:_FEW_FINDINGS]
    ]
    return shown, max(len(others) - _FEW_FINDINGS, 0)


def _name(finding: Finding, analysis: Analysis) -> str:
    """Return `straggler (rank 1, input)`: the code, the ranks if some ranks lack the finding, and the cause."""
    only_some = set(finding.ranks) < set(analysis.ranks_present)
    parts = [figures.ranks(finding.ranks)] if finding.ranks and only_some else []
    parts += [one_line(finding.cause)[:_LONGEST_WORD]] if finding.cause not in {None, "unknown"} else []
    return one_line(finding.code)[:_LONGEST_WORD] + (f" ({', '.join(parts)})" if parts else "")


def unexplained_words(analysis: Analysis, verdict: ReportVerdict) -> list[str]:
    """Return the parts of `without known cause: launch 1.5 ms`; [] if all is explained or if there is no headline."""
    if verdict.headline is None:
        return []
    known = [bucket for bucket in analysis.explained if bucket.unexplained_ms > 0 and bucket.bucket in LABELS]
    words = [
        f"{LABELS[bucket.bucket]} {figures.milliseconds(bucket.unexplained_ms, beside=analysis.steps.mean_ms)} ms"
        for bucket in known[: len(BUCKETS)]
    ]
    return _after("without known cause: ", words)


def warning_words(analysis: Analysis, verdict: ReportVerdict) -> list[str]:
    """Return the codes of the warnings about the recording, without those that the verdict's next step explains."""
    unexplained = any(bucket.unexplained_ms > 0 for bucket in analysis.explained)
    codes = dict.fromkeys(one_line(warning.code)[:_LONGEST_WORD] for warning in analysis.validity)
    # Unexplained buckets have their own words, so the warning about them is omitted.
    said = [code for code in codes if any(f"({code})" in step for step in verdict.steps)]
    shown = [code for code in codes if code not in said and not (code == "unexplained" and unexplained)]
    more = [f"{len(shown) - _FEW_WARNINGS} more"] if len(shown) > _FEW_WARNINGS else []
    return _after(f"warning{'s' * (len(shown) > 1)}: ", [*shown[:_FEW_WARNINGS], *more])


def _after(introduction: str, words: list[str]) -> list[str]:
    """Return the words, with the introduction before the first word."""
    return [f"{introduction}{words[0]}", *words[1:]] if words else []


def commands_for_more(
    analysis: Analysis, verdict: ReportVerdict, paths: Sequence[str], page: str = "", command: str = "analyze"
) -> list[tuple[str, str]]:
    """Return two or three pairs (command, purpose).

    The commands show all details, make the page with a timeline, and explain the first finding or warning that has
    documentation, if any. If the page exists, the second pair has its path instead of a command.

    Args:
        analysis, verdict: the run.
        paths: the paths of the run as the user gave them; empty if unknown.
        page: the HTML page if it exists; "" if a command makes it.
        command: the command that reads these paths.
    """
    given = paths_in_command(paths)
    explained = "" if verdict.headline is None else (verdict.headline.cause or verdict.headline.finding).code
    codes = [explained, *(warning.code.partition(":")[0] for warning in analysis.validity)]
    documented = [code for code in codes if code in FINDING_CODES or code in VALIDITY_CODES]
    lines = [
        (f"gpudiag {command} {given} --full", "evidence, kernels, modules"),
        (one_line(page) or f"gpudiag report {given} --html report.html", "page with a timeline"),
    ]
    return [*lines, *((f"gpudiag explain {code}", "meaning and advice") for code in documented[:1])]


def paths_in_command(paths: Sequence[str]) -> str:
    """Return the paths as words of a shell command; `…` if they are unknown or long."""
    given = shlex.join(one_line(path) for path in paths)
    return given if given and len(given) <= _LONGEST_PATHS else "…"
