"""The selftest's table: true cause and cost beside found cause and cost, in a terminal or as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.selftest import Found, Score, Selftest, SelftestRow
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

_STYLE = {"right": "green", "wrong": "bold red", "too small": "yellow"}
#: Columns of figures.
_FIGURES = {3, 4, 5}
_LONGEST_CODE = len("communication-bound")
_HEADINGS = ("fault", "should be found", "found", "true ms", "found ms", "step ms", "verdict")


def render_selftest(result: Selftest, console: Console) -> None:
    """Draw the table, what is wrong in it, what was left out, and by which tolerance."""
    console.print(Text(title(result), style="bold"))
    for workload in dict.fromkeys(row.workload for row in result.rows):
        table = Table(
            title=Text(one_line(workload)), title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0)
        )
        for number, heading in enumerate(_HEADINGS):
            table.add_column(
                heading,
                justify="right" if number in _FIGURES else "left",
                no_wrap=number not in {1, 2},
                min_width=_LONGEST_CODE if number in {1, 2} else None,
            )
        rows = [row for row in result.rows if row.workload == workload]
        for row in rows:
            *words, _ = _cells(row, between="\n")
            table.add_row(*map(Text, words), Text(row.verdict, style=_STYLE[row.verdict]))
        console.print()
        console.print(table)
    wrong = [row for row in result.rows if row.why]
    if wrong:
        console.print()
    for row in wrong:
        console.print(Text(f"{row.workload}, {row.fault}: {'; '.join(map(one_line, row.why))}", style=_STYLE["wrong"]))
        console.print(Text(f"  run: {one_line(row.run_dir)}"))
    console.print()
    for line in left_out(result):
        console.print(Text(line))
    console.print(Text(f"Tolerance: {result.tolerance}."))
    console.print(Text(summary(result), style="bold"))
    for score in result.scores:
        console.print(Text(f"  {score.name}: {_of(score)}"))


def markdown(result: Selftest) -> str:
    """The same as Markdown, for documentation."""
    lines = [f"{title(result)}.", ""]
    for workload in dict.fromkeys(row.workload for row in result.rows):
        headings = (f"`{workload}`: fault", *_HEADINGS[1:])
        lines += [f"| {' | '.join(headings)} |", "| --- | --- | --- | ---: | ---: | ---: | --- |"]
        for row in result.rows:
            if row.workload == workload:
                cells = [cell.replace("|", "\\|") for cell in _cells(row, between=", ")]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += left_out(result)
    lines += [f"Tolerance: {result.tolerance}. {summary(result)}", ""]
    if result.scores:
        lines += ["| of the faults large enough to be found | | 95 % interval |", "| --- | ---: | ---: |"]
        lines += [f"| {score.name} | {score.right} of {score.of} | {_interval(score)} |" for score in result.scores]
        lines.append("")
    return "\n".join(lines)


def title(result: Selftest) -> str:
    """What it ran on, in one line."""
    what = "CPU processes" if result.device == "cpu" else "GPUs"
    torch = result.software.get("torch")
    versions = f", PyTorch {one_line(torch)}" if torch else ""
    return f"Selftest on {result.world_size} {what} ({one_line(result.device_name)}){versions}"


def left_out(result: Selftest) -> list[str]:
    """What could not be put in, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for left in result.left_out:
        by_reason.setdefault(left.why, []).append(left.fault)
    return [f"Left out: {', '.join(faults)} ({one_line(why)})." for why, faults in by_reason.items()]


def summary(result: Selftest) -> str:
    """How many rows are what, in one line."""
    count = {verdict: sum(row.verdict == verdict for row in result.rows) for verdict in _STYLE}
    words = [f"{count['right']} right", f"{count['wrong']} wrong"]
    if count["too small"]:
        words.append(f"{count['too small']} too small to see")
    return f"{len(result.rows)} rows: {', '.join(words)}."


def _cells(row: SelftestRow, *, between: str) -> tuple[str, ...]:
    """The row's cells; `between` stands between a finding's code and the rest of it."""
    expected = row.expected
    cause = expected.causes if len(expected.causes) == 1 else ()
    should = _no_alarm(row, between)
    if expected.code is not None:
        should = _words(expected.code, expected.ranks, cause, between)
    step_ms = row.true.faulty_ms
    true = f"{_beside(row.true.ms, step_ms)} ± {_beside(row.true.standard_error_ms, step_ms)}"
    return (
        row.fault,
        should,
        "no alarm" if row.found is None else _finding(row.found, between),
        figures.UNKNOWN if expected.code is None else true,
        figures.UNKNOWN if row.found is None else _beside(row.found.ms, step_ms),
        figures.milliseconds(step_ms),
        row.verdict if not row.why else f"wrong: {'; '.join(map(one_line, row.why))}",
    )


def _no_alarm(row: SelftestRow, between: str) -> str:
    """What should be found of a clean job: nothing but what it loses anyway, where that was measured."""
    losses = (("exchange", row.exchange_ms), ("launching", row.launching_ms))
    known = [f"{name} {_beside(max(0.0, ms), row.true.faulty_ms)} ms" for name, ms in losses if ms is not None]
    return between.join(["no alarm", *([f"but {', '.join(known)}"] if known else [])])


def _of(score: Score) -> str:
    """A score with its share and interval, for people."""
    share = f" ({100 * score.right / score.of:.0f} %, 95 % interval {_interval(score)})" if score.of else ""
    return f"{score.right} of {score.of}{share}"


def _interval(score: Score) -> str:
    return f"{100 * score.low:.0f} to {100 * score.high:.0f} %"


def _beside(value_ms: float, step_ms: float) -> str:
    return figures.milliseconds(value_ms, beside=step_ms)


def _finding(finding: Found, between: str) -> str:
    return _words(finding.code, finding.ranks, (finding.cause,) if finding.cause else (), between)


def _words(code: str, ranks: tuple[int, ...], causes: tuple[str, ...], between: str) -> str:
    details = ", ".join([figures.ranks(ranks), *(one_line(cause) for cause in causes)])
    return f"{one_line(code)}{between}{details}"
