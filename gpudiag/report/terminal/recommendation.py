"""Print a recommendation: verdict, ranking, code to change, expected scaling."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.recommendation import Ranked, Recommendation
from gpudiag.model.job import INDEPENDENT
from gpudiag.model.sanitize import one_line, printable
from gpudiag.report import figures
from gpudiag.report.console import drop_columns, indented, print_trimmed

_GOOD, _DIM = "bold green", "dim"
_RANKING = ("strategy", "predicted ms", "exposed ms", "measured ms", "slower by", "samples/s")
#: Columns that narrow terminals omit, in this order.
_DISPENSABLE = ("exposed ms", "samples/s", "predicted ms", "slower by")
#: Smallest width with all columns of the expected scaling.
_ALL_EXPECTED = 52


def render_recommendation(result: Recommendation, console: Console) -> None:
    """Print the recommendation."""
    console.print(Text(_title(result), style="bold"))
    console.print()
    console.print(Text(_verdict(result), style=_GOOD))
    for line in _reasons(result):
        console.print(indented(line))
    console.print()
    print_trimmed(console, _ranking(result, console.width))
    excluded = [f"{one_line(ranked.strategy)}: {one_line(ranked.cannot)}" for ranked in result.ranking if ranked.cannot]
    if excluded:
        console.print()
        console.print(Text("Excluded", style="bold"))
        for line in excluded:
            console.print(indented(line))
    if result.scaling:
        console.print()
        print_trimmed(console, _scaling(result, console.width))
    if result.flags:
        console.print()
        console.print(Text("To use it", style="bold"))
        console.print(indented(f"gpudiag profile {one_line(result.workload)} {' '.join(result.flags)}"))
    if result.code:
        console.print(Text("In your own training loop", style="bold"))
        console.print(indented(printable(result.code, keep="\n")))
    for note in _notes(result):
        console.print(Text(f"Note: {note}", style="yellow"))


def _title(result: Recommendation) -> str:
    device = one_line(result.device_name) or "device"
    batch = f", batch {result.batch_size_per_device} each" if result.batch_size_per_device else ""
    access = {True: ", peer access", False: ", no peer access", None: ""}[result.peer_access]
    basis = "measured in alternating rounds" if result.basis == "measured" else "predicted without running anything"
    return f"{one_line(result.workload)} on {result.devices} x {device}{batch}{access}: {basis}"


def _verdict(result: Recommendation) -> str:
    """Return the recommended strategy in a sentence, with the strategies that are tied with it.

    If one of these was not measured long enough or at all, it may be faster, so that the tie is not certain.
    """
    recommended = one_line(result.recommended)
    if result.verdict != "tie":
        return f"Use {recommended}"
    tied = [ranked for ranked in result.ranking if ranked.strategy in result.tied]
    others = ", ".join(one_line(ranked.strategy) for ranked in tied if ranked.strategy != result.recommended)
    if all(ranked.unranked is None and ranked.cannot is None for ranked in tied):
        return f"Tie: use {recommended} (equally fast: {others})"
    return f"Cannot tell which is fastest: use {recommended} (possibly as fast: {others})"


def _reasons(result: Recommendation) -> list[str]:
    """Return lines with the reason for the choice, the savings, and the step without communication."""
    lines = [one_line(result.reason)]
    if result.gain is not None:
        saved = f"saves {result.gain.ms:.2f} ms per step ({result.gain.percent:.1f} %)"
        predicted = "" if result.gain.measured else " (predicted)"
        lines.append(f"{saved} compared with {one_line(result.gain.over)}{predicted}")
    if result.ceiling is not None:
        left = result.ceiling.percent_left
        more = "" if left is None else f"; at most {max(0.0, left):.1f} % of the step can still be saved"
        lines.append(f"without any communication the step takes {result.ceiling.step_ms:.2f} ms{more}")
    return lines


def _ranking(result: Recommendation, width: int) -> Table:
    """Return the ranking. In narrow terminals whole columns are omitted, so that no figure is cut."""
    rows = [ranked for ranked in result.ranking if ranked.cannot is None]
    cells = map(_ranked_cells, rows)
    # Transpose the rows: heading → the cells of all strategies.
    columns = {heading: column for heading, *column in zip(_RANKING, *cells, strict=True)}
    if result.basis != "measured":
        del columns["measured ms"], columns["slower by"]
    drop_columns(columns, _DISPENSABLE, width)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "strategy" else "right", no_wrap=heading != "strategy")
    for ranked, *words in zip(rows, *columns.values(), strict=True):
        table.add_row(*map(Text, words), style=_row_style(ranked, result))
    return table


def _ranked_cells(ranked: Ranked) -> tuple[str, ...]:
    """Return the cells of `_RANKING` for a strategy."""
    return (
        one_line(ranked.strategy),
        _ms(ranked.predicted_step_ms),
        _ms(ranked.exposed_ms),
        ranked.step_words(),
        _slower(ranked),
        figures.throughput(ranked.samples_per_s),
    )


def _row_style(ranked: Ranked, result: Recommendation) -> str:
    if ranked.strategy == result.recommended:
        return _GOOD
    return _DIM if ranked.strategy == INDEPENDENT else ""


def _scaling(result: Recommendation, width: int) -> Table:
    """Return the expected steps by number of devices. Narrow terminals omit samples/s and speedup."""
    table = Table(
        title=Text(f"Expected scaling of {one_line(result.scaling[0].strategy)}, same batch per device"),
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("devices", "step ms", *(("samples/s", "speedup") if width >= _ALL_EXPECTED else ()), "efficiency"):
        table.add_column(heading, justify="right", no_wrap=True)
    for expected in result.scaling:
        more = (figures.throughput(expected.samples_per_s), f"{expected.speedup:.2f}") if width >= _ALL_EXPECTED else ()
        table.add_row(str(expected.devices), f"{expected.step_ms:.2f}", *more, f"{expected.efficiency:.1%}")
    return table


def _notes(result: Recommendation) -> list[str]:
    notes = [one_line(note) for note in result.notes]
    if result.assumed:
        values = ", ".join(f"{one_line(what)} {one_line(value)}" for what, value in result.assumed.items())
        notes.append(f"assumed, not measured: {values}")
    return notes


def _ms(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _slower(ranked: Ranked) -> str:
    """Return how much slower a strategy is than the fastest: `3.2 ± 0.4 %`; "" without comparison.

    An unranked strategy is `not known`. Only the fastest strategy, which is compared with itself, has an interval from
    0 to 0.
    """
    if ranked.unranked is not None:
        return "not known"
    if ranked.slower_percent is None or ranked.slower_ci95 is None or ranked.strategy == INDEPENDENT:
        return ""
    if ranked.slower_percent == 0.0 and ranked.slower_ci95 == (0.0, 0.0):
        return "fastest"
    return f"{ranked.slower_percent:.1f} ± {(ranked.slower_ci95[1] - ranked.slower_ci95[0]) / 2:.1f} %"
