"""Show the table of many results: in a terminal, as Markdown and as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from numbers import Integral
from typing import Any

from rich.console import Console
from rich.text import Text

from gpudiag.model.benchmarks.tables import Comparable, ResultRow, ResultsTable
from gpudiag.model.frames import results_frame
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import and_more, heading, plain_table, print_trimmed
from gpudiag.report.markup import csv_text, escaped, markdown_table
from gpudiag.report.scaling import words

VERDICT = "verdict"
HEADINGS = ("rank", "strategy", "samples/s", "±", "step ms", "jitter", "efficiency", "MFU", "machine", "from")
_WORDS = {"strategy", "machine", "from", VERDICT}
#: Name of an environment whose machine is unknown.
_UNKNOWN_MACHINE = "unknown machine"
#: Maximum number of tables and of rows in a terminal, because 200 tables take a second. Files have no such limit.
_MOST_GROUPS, _MOST_ROWS = 500, 1000


def render_table(result: ResultsTable, console: Console) -> None:
    """Print every group, the reasons why groups are not ranked together, and the paths that could not be read."""
    groups = result.groups[:_MOST_GROUPS]
    for group, rows in zip(groups, _rows_of_each(groups), strict=True):
        console.print(heading(_title(group)))
        table = plain_table(_headings(group), left=_WORDS, overflow="fold")
        for row in rows[:_MOST_ROWS]:
            table.add_row(*map(Text, row))
        print_trimmed(console, table)
        for more in and_more([], len(rows) - _MOST_ROWS):
            console.print(more)
        for line in _not_measured(group)[:_MOST_ROWS]:
            print_trimmed(console, Text(line, style="yellow"))
        for refusal in group.refusals:
            console.print(Text(f"Not ranked together: {one_line(refusal)}.", style="yellow"))
        console.print()
    for more in and_more([], len(result.groups) - _MOST_GROUPS, "tables: "):
        console.print(more)
    for refusal in result.refusals:
        console.print(Text(f"Not ranked together: {one_line(refusal)}.", style="yellow"))
    for line in result.left_out:
        console.print(Text(f"Left out: {one_line(line)}", style="yellow"))


def to_markdown(result: ResultsTable) -> str:
    """Return every group as Markdown."""
    lines = []
    for group, rows in zip(result.groups, _rows_of_each(result.groups), strict=True):
        lines += [f"## {escaped(_title(group))}", "", *markdown_table(_headings(group), rows, left=2), ""]
        lines += [text for line in _not_measured(group) for text in (escaped(line), "")]
        lines += [f"Not ranked together: {escaped(refusal)}.\n" for refusal in group.refusals]
    lines += [f"- Not ranked together: {escaped(refusal)}." for refusal in result.refusals]
    lines += [f"- Left out: {escaped(line)}" for line in result.left_out]
    return "\n".join([*lines, ""])


def to_csv_rows(result: ResultsTable) -> str:
    """Return one row per point with its source, machine and rank."""
    return csv_text(results_frame(result.groups))


def _title(group: Comparable) -> str:
    point = group.environments[0].rows[0].point
    return f"{words.setting(point)} · {point.devices} device{'s' * (point.devices != 1)}"


def _members(group: Comparable) -> list[ResultRow]:
    return [row for environment in group.environments for row in environment.rows]


def _headings(group: Comparable) -> tuple[str, ...]:
    """Return the headings, with `verdict` only if a run has a verdict."""
    return (*HEADINGS, VERDICT) if any(row.verdict for row in _members(group)) else HEADINGS


def _rows_of_each(groups: Sequence[Comparable]) -> list[list[tuple[str, ...]]]:
    """Return the rows of each group. All groups share one data frame, because making a frame takes milliseconds."""
    # The frame has the members of all groups in order.
    cells = (_cells(row) for row in results_frame(groups).itertuples(index=False))
    rows_of_each = []
    for group in groups:
        members = _members(group)
        rows = list(islice(cells, len(members)))
        if len(_headings(group)) > len(HEADINGS):
            rows = [(*row, one_line(member.verdict)) for row, member in zip(rows, members, strict=True)]
        rows_of_each.append(rows)
    return rows_of_each


def _not_measured(group: Comparable) -> list[str]:
    """Return a line for each result without figures."""
    return [
        f"{one_line(row.source)}, {one_line(row.point.strategy)}: {one_line(row.point.error or row.point.status)}"
        for row in _members(group)
        if row.point.mean_ms is None
    ]


def _cells(row: Any) -> tuple[str, ...]:
    """Return the cells of `HEADINGS` for a row of the data frame, in which missing values are NaN."""
    machine, source, strategy = one_line(row.machine), one_line(row.source), one_line(row.strategy)
    machine = figures.UNKNOWN if machine == _UNKNOWN_MACHINE else machine
    samples_per_s, low, high, step_ms, efficiency, jitter_ms, mfu = (
        None if math.isnan(value) else value
        for value in (
            *(row.samples_per_s, row.ci95_low, row.ci95_high, row.mean_ms, row.efficiency, row.jitter_ms),
            row.mfu_percent,
        )
    )
    # The fourth cell is half the width of the 95 % interval of samples/s, in percent.
    if step_ms is None:
        return ("", strategy, "not measured", "", "", "", "", "", machine, source)
    return (
        str(row.rank) if isinstance(row.rank, Integral) else "",
        strategy,
        figures.UNKNOWN if samples_per_s is None else words.throughput(samples_per_s, row.mvox_per_s),
        "" if not samples_per_s or low is None or high is None else f"{50 * (high - low) / samples_per_s:.1f} %",
        figures.milliseconds(step_ms),
        figures.milliseconds(jitter_ms, beside=step_ms),
        words.share(efficiency),
        "" if mfu is None else f"{mfu:.1f} %",
        machine,
        source,
    )
