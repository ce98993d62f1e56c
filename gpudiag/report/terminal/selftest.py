"""Print the table of a selftest, which compares each injected fault and its cost with the finding and its savings."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.selftest import Found, Score, Selftest, SelftestRow
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures

_STYLE = {"right": "green", "wrong": "bold red", "too small": "yellow", "too noisy": "yellow"}
_NUMBER_COLUMNS = {3, 4, 5}  # of `_HEADINGS`
_LONGEST_CODE = len("communication-bound")
_HEADINGS = ("fault", "expected", "found", "true ms", "found ms", "step ms", "verdict")


def render_selftest(result: Selftest, console: Console) -> None:
    """Print the table, the wrong rows with their reasons, the skipped faults, and the tolerance."""
    console.print(Text(title(result), style="bold"))
    for workload in dict.fromkeys(row.workload for row in result.rows):
        console.print()
        console.print(_table(result, workload))
    wrong = [row for row in result.rows if row.why]
    if wrong:
        console.print()
    for row in wrong:
        console.print(Text(f"{row.workload}, {row.fault}: {'; '.join(map(one_line, row.why))}", style=_STYLE["wrong"]))
        console.print(Text(f"  run: {one_line(row.run_dir)}"))
    console.print()
    for line in skipped(result):
        console.print(Text(line))
    console.print(Text(f"Tolerance: {result.tolerance}."))
    console.print(Text(summary(result), style="bold"))
    for score in result.scores:
        share = f" ({100 * score.right / score.of:.0f} %, 95 % interval {_interval(score)})" if score.of else ""
        console.print(Text(f"  {score.name}: {score.right} of {score.of}{share}"))


def _table(result: Selftest, workload: str) -> Table:
    """Return the rows of one workload. In `expected` and `found`, a line break follows the finding's code."""
    table = Table(
        title=Text(one_line(workload)), title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0)
    )
    for number, heading in enumerate(_HEADINGS):
        table.add_column(
            heading,
            justify="right" if number in _NUMBER_COLUMNS else "left",
            no_wrap=number not in {1, 2},
            min_width=_LONGEST_CODE if number in {1, 2} else None,
        )
    for row in result.rows:
        if row.workload == workload:
            *words, _ = _cells(row, separator="\n")
            table.add_row(*map(Text, words), Text(row.verdict, style=_STYLE[row.verdict]))
    return table


def markdown(result: Selftest) -> str:
    """Return the output of `render_selftest` as Markdown, with the reasons of wrong rows inside the table."""
    lines = [f"{title(result)}.", ""]
    for workload in dict.fromkeys(row.workload for row in result.rows):
        headings = (f"`{workload}`: fault", *_HEADINGS[1:])
        lines += [f"| {' | '.join(headings)} |", "| --- | --- | --- | ---: | ---: | ---: | --- |"]
        for row in result.rows:
            if row.workload == workload:
                cells = [cell.replace("|", "\\|") for cell in _cells(row, separator=", ")]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    lines += skipped(result)
    lines += [f"Tolerance: {result.tolerance}. {summary(result)}", ""]
    if result.scores:
        lines += ["| of the faults large enough to be found | | 95 % interval |", "| --- | ---: | ---: |"]
        lines += [f"| {score.name} | {score.right} of {score.of} | {_interval(score)} |" for score in result.scores]
        lines.append("")
    return "\n".join(lines)


def title(result: Selftest) -> str:
    """Return the machine and software of the selftest in one line."""
    devices = "CPU processes" if result.device == "cpu" else "GPUs"
    torch = result.software.get("torch")
    versions = f", PyTorch {one_line(torch)}" if torch else ""
    return f"Selftest on {result.world_size} {devices} ({one_line(result.device_name)}){versions}"


def skipped(result: Selftest) -> list[str]:
    """Return the faults that could not be injected, one line per reason."""
    by_reason: dict[str, list[str]] = {}
    for left in result.left_out:
        by_reason.setdefault(left.why, []).append(left.fault)
    return [f"Skipped: {', '.join(faults)} ({one_line(why)})." for why, faults in by_reason.items()]


def summary(result: Selftest) -> str:
    """Return the number of rows with each verdict in one line."""
    count = {verdict: sum(row.verdict == verdict for row in result.rows) for verdict in _STYLE}
    words = [f"{count['right']} right", f"{count['wrong']} wrong"]
    if count["too small"]:
        words.append(f"{count['too small']} too small to see")
    if count["too noisy"]:
        words.append(f"{count['too noisy']} too noisy to judge")
    return f"{len(result.rows)} rows: {', '.join(words)}."


def _cells(row: SelftestRow, *, separator: str) -> tuple[str, ...]:
    """Return the row's cells, with `separator` between a finding's code and its ranks."""
    step_ms = row.true.faulty_ms
    return (
        row.fault,
        _expected(row, separator),
        "no alarm" if row.found is None else _found(row.found, separator),
        figures.UNKNOWN
        if row.expected.code is None
        else f"{_ms(row.true.ms, step_ms)} ± {_ms(row.true.standard_error_ms, step_ms)}",
        figures.UNKNOWN if row.found is None else _ms(row.found.ms, step_ms),
        figures.milliseconds(step_ms),
        row.verdict if not row.why else f"wrong: {'; '.join(map(one_line, row.why))}",
    )


def _expected(row: SelftestRow, separator: str) -> str:
    """Return the expected finding. For a clean job, return `no alarm` and the measured losses of the job."""
    expected = row.expected
    if expected.code is not None:
        cause = expected.causes if len(expected.causes) == 1 else ()  # of several causes each is right
        return _finding(expected.code, expected.ranks, cause, separator)
    losses = (("communication", row.exchange_ms), ("launching", row.launching_ms))
    known = [f"{name} {_ms(max(0.0, ms), row.true.faulty_ms)} ms" for name, ms in losses if ms is not None]
    return separator.join(["no alarm", *([f"but {', '.join(known)}"] if known else [])])


def _found(finding: Found, separator: str) -> str:
    return _finding(finding.code, finding.ranks, (finding.cause,) if finding.cause else (), separator)


def _finding(code: str, ranks: tuple[int, ...], causes: tuple[str, ...], separator: str) -> str:
    details = ", ".join([figures.ranks(ranks), *(one_line(cause) for cause in causes)])
    return f"{one_line(code)}{separator}{details}"


def _interval(score: Score) -> str:
    return f"{100 * score.low:.0f} to {100 * score.high:.0f} %"


def _ms(value_ms: float, step_ms: float) -> str:
    return figures.milliseconds(value_ms, beside=step_ms)
