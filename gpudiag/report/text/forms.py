"""Show tables in the formats of earlier benchmarks: in a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io

from rich.console import Console
from rich.text import Text

from gpudiag.model.benchmarks.tables import Column, FormTable, FormTables, Value
from gpudiag.model.sanitize import not_a_formula, one_line
from gpudiag.report import figures
from gpudiag.report.console import heading, plain_table, print_trimmed
from gpudiag.report.markup import escaped, markdown_table


def render_forms(result: FormTables, console: Console) -> None:
    """Print every form. If a form has no rows, print the measurements that it needs."""
    for form in result.tables:
        console.print(heading(form.title))
        if form.rows:
            words = {one_line(column.heading) for column in form.columns if column.kind == "word"}
            table = plain_table([one_line(column.heading) for column in form.columns], left=words, overflow="fold")
            for row in _cells(form):
                table.add_row(*map(Text, row))
            print_trimmed(console, table)
        for line in _below(form):
            console.print(Text(line, style="dim"))
        console.print()
    for line in result.left_out:
        console.print(Text(f"Left out: {one_line(line)}", style="yellow"))


def to_markdown(result: FormTables) -> str:
    """Return Markdown with the machines, then the table of every form."""
    several = len(result.machines) > 1
    lines = ["# In the formats of earlier benchmarks", ""]
    for source, machine in result.machines.items():
        lines += [f"{f'{escaped(source)}: ' if several else ''}{escaped(machine)}.", ""]
    for form in result.tables:
        left = sum(column.kind == "word" for column in form.columns)
        lines += [f"## {escaped(form.title)}", ""]
        if form.rows:
            lines += [*markdown_table([column.heading for column in form.columns], _cells(form), left=left), ""]
        lines += [text for line in _below(form) for text in (escaped(line), "")]
    lines += [f"- Left out: {escaped(line)}" for line in result.left_out]
    return "\n".join([*lines, ""]).rstrip("\n") + "\n"


def to_csv_rows(form: FormTable) -> str:
    """Return the form as CSV with full precision. Missing values are empty."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow([_csv_value(column.heading) for column in form.columns])
    rows.writerows([["" if value is None else _csv_value(value) for value in row] for row in form.rows])
    return written.getvalue()


def _below(form: FormTable) -> list[str]:
    """Return the note of a form, or the measurements that an empty form needs."""
    if not form.rows:
        return [f"Not measured: {form.missing}."]
    return [form.note] if form.note else []


def _cells(form: FormTable) -> list[list[str]]:
    return [[_cell(column, value) for column, value in zip(form.columns, row, strict=True)] for row in form.rows]


def _cell(column: Column, value: Value) -> str:
    """Return a value in the format of its column; "" if it is missing."""
    if value is None:
        return ""
    if isinstance(value, str):
        return one_line(value)
    if column.kind == "count":
        return figures.thousands(value)
    if column.kind == "ratio":
        return f"{value:.2f}x"
    if column.kind == "percent":
        return f"{value:.2f} %"
    return figures.throughput(value)


def _csv_value(value: Value) -> Value:
    return not_a_formula(one_line(value)) if isinstance(value, str) else value
