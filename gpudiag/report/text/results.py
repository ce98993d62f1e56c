"""The table of many results: in a terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
import io

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.results_table import Comparable, Environment, ResultRow, ResultsTable
from gpudiag.model.sanitize import not_a_formula, one_line
from gpudiag.report import figures
from gpudiag.report.layout import print_trimmed
from gpudiag.report.scaling import words
from gpudiag.report.scaling.text import escaped, table, to_csv

HEADINGS = ("rank", "strategy", "samples/s", "±", "step ms", "jitter", "efficiency", "machine", "from")


def render_table(result: ResultsTable, console: Console) -> None:
    """Print every group, what is not ranked and why, and what could not be read."""
    for group in result.groups:
        console.print(Text(_heading(group), style="bold underline"))
        drawn = Table(box=None, padding=(0, 2, 0, 0))
        for heading in HEADINGS:
            drawn.add_column(heading, justify="left" if heading in _WORDS else "right", overflow="fold")
        for row in _rows(group):
            drawn.add_row(*map(Text, row))
        print_trimmed(console, drawn)
        for refusal in group.refusals:
            console.print(Text(f"Not ranked together: {one_line(refusal)}.", style="yellow"))
        console.print()
    for refusal in result.refusals:
        console.print(Text(f"Not ranked together: {one_line(refusal)}.", style="yellow"))
    for line in result.left_out:
        console.print(Text(f"Left out: {one_line(line)}", style="yellow"))


_WORDS = {"strategy", "machine", "from"}


def to_markdown(result: ResultsTable) -> str:
    """The same for documentation."""
    lines = []
    for group in result.groups:
        lines += [f"## {escaped(_heading(group))}", "", *table(HEADINGS, _rows(group), left=2), ""]
        lines += [f"Not ranked together: {escaped(refusal)}.\n" for refusal in group.refusals]
    lines += [f"- Not ranked together: {escaped(refusal)}." for refusal in result.refusals]
    lines += [f"- Left out: {escaped(line)}" for line in result.left_out]
    return "\n".join([*lines, ""])


def to_csv_rows(result: ResultsTable) -> str:
    """All points with their source, machine and rank, one row each."""
    rows = [
        (row, environment.machine)
        for group in result.groups
        for environment in group.environments
        for row in environment.rows
    ]
    plain = list(csv.reader(io.StringIO(to_csv([row.point for row, _ in rows]))))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("source", "machine", "rank", *plain[0]))
    for (row, machine), cells in zip(rows, plain[1:], strict=True):
        writer.writerow((not_a_formula(one_line(row.source)), one_line(machine), row.rank or "", *cells))
    return out.getvalue()


def _heading(group: Comparable) -> str:
    point = group.environments[0].rows[0].point
    return f"{words.setting(point)} · {point.devices} device{'s' * (point.devices != 1)}"


def _rows(group: Comparable) -> list[tuple[str, ...]]:
    return [_cells(row, environment) for environment in group.environments for row in environment.rows]


def _cells(row: ResultRow, environment: Environment) -> tuple[str, ...]:
    point = row.point
    machine, source = one_line(environment.machine), one_line(row.source)
    if point.samples_per_s is None or point.ci95 is None or point.step_ms is None:
        return ("", point.strategy, one_line(point.error or point.status)[:80], "", "", "", "", machine, source)
    half = 100 * (point.ci95[1] - point.ci95[0]) / 2 / point.samples_per_s
    return (
        "" if row.rank is None else str(row.rank),
        one_line(point.strategy),
        figures.rate(point.samples_per_s),
        f"{half:.1f} %",
        figures.milliseconds(point.step_ms),
        figures.milliseconds(point.jitter_ms, beside=point.step_ms),
        words.share(point.efficiency),
        machine,
        source,
    )
