"""Print the difference between two runs: verdict, runs, buckets, ranks, waits, findings, warnings.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import BUCKETS, Finding
from gpudiag.model.diff import Diff, FindingChange, LineChange, RankChange, WaitChange
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import and_more, plain_grid, print_trimmed, under_headings
from gpudiag.report.diff.tables import SEEN_MS, parts_table, waterfall
from gpudiag.report.diff.words import header, signed, verdict
from gpudiag.report.palette import LABELS, SEVERITY_STYLE
from gpudiag.report.rank_rows import bucket_distance, labels
from gpudiag.report.terminal.traffic import wait_line

MOST_RANKS = 8
MOST_WAITS = 5
MOST_LINES = 8
MOST_FINDINGS = 12
_LONGEST = 300  # characters of a text from a file
#: A rank is an outlier if the `bucket_distance` from its changes to the median changes exceeds this share of the step.
_UNLIKE_SHARE = 0.05
#: Smallest change that is shown, as a share of the step. Smaller changes are jitter or rounding.
_SEEN_SHARE = 0.01
_WITHIN_A_RUN = "Noise is the variation of steps within each run; two runs of the same code may differ by more."


def render_diff(diff: Diff, console: Console) -> None:
    """Print the whole difference."""
    step = diff.step("profiled")
    longest = max(step.before_ms, step.after_ms)
    waits = wait_lines(diff.waits, longest)
    doubts = doubt_lines(diff)
    sections: list[tuple[str, RenderableType | None]] = [
        ("From A to B, while profiling", Group(waterfall(diff, console), *_overlapped(diff))),
        ("Largest changes", parts_table(diff, console.width)),
        ("Ranks, B - A", rank_lines(diff.ranks, longest) if diff.ranks else None),
        ("Source lines", lines_table(diff.lines, longest)),
        ("Waits", Group(*waits) if waits else None),
        ("Findings", findings_table(diff.findings) if diff.findings else None),
        ("How far to trust this", Group(*doubts) if doubts else None),
    ]
    print_trimmed(console, Group(*verdict(diff), Text(), *header(diff, console.width), *under_headings(sections)))


def _overlapped(diff: Diff) -> list[Text]:
    if max(diff.hidden_communication_ms) < SEEN_MS:
        return []
    old, new = map(figures.milliseconds, diff.hidden_communication_ms)
    return [Text(f"Communication overlapped with compute: {old} → {new} ms", style="dim")]


def rank_lines(ranks: Sequence[RankChange], step_ms: float) -> RenderableType:
    """Return a line per rank with the buckets that changed; of many ranks, only the median and the outliers.

    `step_ms` is the longer step of both runs, of which the thresholds are shares.
    """
    table = plain_grid({"no_wrap": True}, {"no_wrap": True, "justify": "right"}, {})
    names = labels(ranks)
    largest = max(abs(rank.difference_ms) for rank in ranks)
    shown = list(range(len(ranks)))
    if len(ranks) > MOST_RANKS:
        median_ms = {bucket: median(rank.buckets_ms[bucket] for rank in ranks) for bucket in BUCKETS}
        distances = [bucket_distance(rank.buckets_ms, median_ms) for rank in ranks]
        outliers = [index for index in shown if distances[index] > _UNLIKE_SHARE * step_ms]
        shown = sorted(sorted(outliers, key=lambda index: -distances[index])[: MOST_RANKS - 1])  # one for the median
        difference_words = signed(median(rank.difference_ms for rank in ranks), beside=largest)
        name = Text(f"median of {len(ranks)}")
        table.add_row(name, Text(difference_words, style="bold"), _buckets(median_ms, step_ms))
    for index in shown:
        rank = ranks[index]
        difference = Text(signed(rank.difference_ms, beside=largest), style="bold")
        table.add_row(Text(names[index]), difference, _buckets(rank.buckets_ms, step_ms))
    if len(shown) == len(ranks):
        return table
    note = "Shown: the median and the ranks that differ most from it. --json has every rank."
    return Group(table, Text(note, style="dim"))


def _buckets(buckets_ms: Mapping[str, float], step_ms: float) -> Text:
    """Return `wait +33.2, compute +3.0`, largest change first, without changes below 1 % of `step_ms`."""
    changed = [bucket for bucket in BUCKETS if abs(buckets_ms[bucket]) >= _SEEN_SHARE * step_ms]
    if not changed:
        return Text("no bucket changed by 1 % of the step", style="dim")
    changed.sort(key=lambda bucket: -abs(buckets_ms[bucket]))
    most = abs(buckets_ms[changed[0]])
    return Text(", ".join(f"{LABELS[bucket]} {signed(buckets_ms[bucket], beside=most)}" for bucket in changed))


def lines_table(lines: Sequence[LineChange], step_ms: float) -> Table | None:
    """Return a row per source line that changed by 1 % of `step_ms`, in the order of `lines`; None without a row."""
    changed = [line for line in lines if abs(line.difference_ms) >= _SEEN_SHARE * step_ms][:MOST_LINES]
    if not changed:
        return None
    right = {"no_wrap": True, "justify": "right"}
    table = plain_grid({"no_wrap": True}, right, right, right, {}, gap=2)
    for line in changed:
        table.add_row(
            Text(f"{one_line(line.file).rpartition('/')[2]}:{line.line}"),
            Text(figures.milliseconds(line.before_ms, beside=step_ms)),
            Text(figures.milliseconds(line.after_ms, beside=step_ms)),
            Text(signed(line.difference_ms, beside=step_ms)),
            Text(one_line(line.source)[:_LONGEST]),
        )
    return table


def wait_lines(waits: Sequence[WaitChange], step_ms: float) -> list[Text]:
    """Return a line per rank for which others wait longer in B than in A, and per rank for which they wait less.

    The largest change is first. Changes of less than 1 % of `step_ms` are omitted.
    """
    groups: dict[tuple[int, bool], list[WaitChange]] = defaultdict(list)
    for wait in waits:
        if abs(wait.difference_ms) >= _SEEN_SHARE * step_ms:
            groups[wait.on_rank, wait.difference_ms > 0].append(wait)
    ordered = sorted(groups.items(), key=lambda item: -sum(abs(wait.difference_ms) for wait in item[1]))
    lines = [
        wait_line(on_rank, [(wait.rank, abs(wait.difference_ms)) for wait in group], " longer" if longer else " less")
        for (on_rank, longer), group in ordered[:MOST_WAITS]
    ]
    return and_more(lines, len(ordered) - MOST_WAITS, prefix="for ")


def findings_table(findings: Sequence[FindingChange]) -> Table:
    """Return a row per finding with its status (appeared, disappeared, remained), severity, savings and title."""
    table = plain_grid({"no_wrap": True}, {})
    for change in findings[:MOST_FINDINGS]:
        table.add_row(Text(change.status), _finding_line(change))
    for more in and_more([], len(findings) - MOST_FINDINGS):
        table.add_row(Text(), more)
    return table


def _finding_line(change: FindingChange) -> Text:
    """Return code, severity, ranks and savings of a finding, then its title.

    If both runs have the finding, the title is omitted, and severity, ranks and savings are those of A → B. A row
    without finding is empty.
    """
    finding = change.after if change.after is not None else change.before
    if finding is None:
        return Text()
    line = Text(_cut(finding.code), style=SEVERITY_STYLE[finding.severity])
    line.append(" ", style="default not bold")
    if change.before is not None and change.after is not None:
        old, new = _facts(change.before), _facts(change.after)
        return line.append(new if old == new else f"{old} → {new}", style="default not bold")
    title = _cut(finding.title)
    return line.append(f"{_facts(finding)}{': ' if title else ''}{title}", style="default not bold")


def _facts(finding: Finding) -> str:
    facts: list[str] = [finding.severity]
    facts += [figures.ranks(finding.ranks)] if finding.ranks else []
    if finding.recoverable_ms_per_step is not None and finding.recoverable_ms_per_step > 0:
        facts.append(f"saves {figures.milliseconds(finding.recoverable_ms_per_step)} ms")
    return f"({', '.join(facts)})"


def doubt_lines(diff: Diff) -> list[Text]:
    """Return the differences between the runs' settings, then the warnings; a warning of both runs is one line."""
    lines = [
        _doubt(f"{change.what} {_cut(change.before)} → {_cut(change.after)}", change.message)
        for change in diff.run_differences
    ]
    if diff.parts_reason:
        lines.append(Text(f"No breakdown by kernel and collective: {diff.parts_reason}."))
    runs_of: dict[tuple[str, str], dict[str, None]] = {}
    for warning in diff.validity:
        runs_of.setdefault((warning.code, warning.message), {})["A" if warning.run == "before" else "B"] = None
    lines += [_doubt(f"{' and '.join(runs)}: {_cut(code)}", _cut(message)) for (code, message), runs in runs_of.items()]
    if diff.outcome in {"slower", "faster"}:
        lines.append(Text(_WITHIN_A_RUN, style="dim"))
    return lines


def _doubt(topic: str, message: str) -> Text:
    return Text(f"{topic}: ", style="yellow").append(message, style="default")


def _cut(text: str) -> str:
    return one_line(text)[:_LONGEST]
