"""The selftest's table: true cause and cost beside found cause and cost, in a terminal or as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.printable import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from gpudiag.model.selftest import Found, Row, Selftest

_STYLE = {"right": "green", "wrong": "bold red", "too small": "yellow"}
_HEADINGS = ("fault", "should be found", "found", "true cost ms", "found ms", "verdict")


def render_selftest(result: Selftest, console: Console) -> None:
    """Draw the table, what is wrong in it, what was left out, and by which tolerance."""
    console.print(Text(title(result), style="bold"))
    for workload in dict.fromkeys(row.workload for row in result.rows):
        table = Table(title=Text(one_line(workload)), title_justify="left", title_style="", box=None, pad_edge=False)
        for number, heading in enumerate(_HEADINGS):
            table.add_column(heading, justify="right" if number in {3, 4} else "left", no_wrap=number in {0, 3, 4})
        rows = [row for row in result.rows if row.workload == workload]
        for row in rows:
            *words, verdict = _cells(row)
            table.add_row(*map(Text, words), Text(verdict, style=_STYLE[row.verdict]))
        console.print()
        console.print(table)
    wrong = [row for row in result.rows if row.why]
    if wrong:
        console.print()
    for row in wrong:
        console.print(Text(f"{row.workload}, {row.fault}: {'; '.join(map(one_line, row.why))}", style=_STYLE["wrong"]))
        console.print(Text(f"  see: gpudiag analyze <output>/{row.run_dir}"))
    console.print()
    for one in result.left_out:
        console.print(Text(f"Left out: {one.fault} {one_line(one.why)}."))
    console.print(Text(f"Tolerance: {result.tolerance}."))
    console.print(Text(summary(result), style="bold"))


def markdown(result: Selftest) -> str:
    """The same as Markdown, for documentation."""
    lines = [f"{title(result)}.", ""]
    for workload in dict.fromkeys(row.workload for row in result.rows):
        headings = (f"`{workload}`: fault", *_HEADINGS[1:])
        lines += [f"| {' | '.join(headings)} |", "| --- | --- | --- | ---: | ---: | --- |"]
        for row in result.rows:
            if row.workload == workload:
                cells = [cell.replace("|", "\\|") for cell in _cells(row)]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += [f"Left out: {one.fault} ({one.why})." for one in result.left_out]
    lines += [f"Tolerance: {result.tolerance}. {summary(result)}", ""]
    return "\n".join(lines)


def title(result: Selftest) -> str:
    """What it ran on, in one line."""
    what = "CPU processes" if result.device == "cpu" else "GPUs"
    torch = result.software.get("torch")
    versions = f", PyTorch {one_line(torch)}" if torch else ""
    return f"Selftest on {result.world_size} {what} ({one_line(result.device_name)}){versions}"


def summary(result: Selftest) -> str:
    """How many rows are what, in one line."""
    count = {verdict: sum(row.verdict == verdict for row in result.rows) for verdict in _STYLE}
    words = [f"{count['right']} right", f"{count['wrong']} wrong"]
    if count["too small"]:
        words.append(f"{count['too small']} too small to see")
    return f"{len(result.rows)} rows: {', '.join(words)}."


def _cells(row: Row) -> tuple[str, ...]:
    expected = row.expected
    should = "no alarm" if expected.code is None else _words(expected.code, expected.ranks, expected.causes[:1])
    error = figures.milliseconds(row.true.standard_error_ms, beside=max(row.true.faulty_ms, 10.0))
    true = f"{figures.milliseconds(row.true.ms, beside=max(row.true.faulty_ms, 10.0))} ± {error}"
    return (
        row.fault,
        should,
        "no alarm" if row.found is None else _described(row.found),
        figures.UNKNOWN if expected.code is None else f"{true} of {figures.milliseconds(row.true.faulty_ms)}",
        figures.UNKNOWN
        if row.found is None
        else figures.milliseconds(row.found.ms, beside=max(row.true.faulty_ms, 10)),
        row.verdict if not row.why else f"wrong: {'; '.join(map(one_line, row.why))}",
    )


def _described(found: Found) -> str:
    return _words(found.code, found.ranks, (found.cause,) if found.cause else ())


def _words(code: str, ranks: tuple[int, ...], causes: tuple[str, ...]) -> str:
    parts = [one_line(code), figures.ranks(ranks), *(one_line(cause) for cause in causes)]
    return ", ".join(parts)
