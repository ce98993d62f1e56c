"""A recommendation in a terminal: the verdict in words, the ranking as a table, what to change, what to expect."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.recommendation import Ranked, Recommendation
from gpudiag.model.job import INDEPENDENT
from gpudiag.model.sanitize import one_line, printable
from gpudiag.report import figures
from gpudiag.report.layout import indented

_GOOD, _DIM = "bold green", "dim"
#: Narrower than this the table leaves out the prediction's parts.
_WIDE = 90


def render_recommendation(result: Recommendation, console: Console) -> None:
    """Draw it."""
    console.print(Text(_title(result), style="bold"))
    console.print()
    console.print(Text(_verdict(result), style=_GOOD))
    for line in _why(result):
        console.print(indented(line))
    console.print()
    console.print(_ranking(result, wide=console.width >= _WIDE))
    left_out = [f"{one_line(ranked.strategy)}: {one_line(ranked.cannot)}" for ranked in result.ranking if ranked.cannot]
    if left_out:
        console.print()
        console.print(Text("Left out", style="bold"))
        for line in left_out:
            console.print(indented(line))
    if result.scaling:
        console.print()
        console.print(_scaling(result))
    if result.flags:
        console.print()
        console.print(Text("To use it", style="bold"))
        console.print(indented(f"gpudiag profile {one_line(result.workload)} {' '.join(result.flags)}"))
    if result.code:
        console.print(Text("In a loop of your own", style="bold"))
        console.print(indented(printable(result.code, keep="\n")))
    for note in _notes(result):
        console.print(Text(f"Note: {note}", style="yellow"))


def _title(result: Recommendation) -> str:
    device = one_line(result.device_name) or "device"
    batch = f", batch {result.batch_size_per_device} each" if result.batch_size_per_device else ""
    access = {True: ", peer access", False: ", no peer access", None: ""}[result.peer_access]
    how = "measured by turns" if result.basis == "measured" else "predicted, nothing was run"
    return f"{one_line(result.workload)} on {result.devices} x {device}{batch}{access}: {how}"


def _verdict(result: Recommendation) -> str:
    if result.verdict == "tie":
        others = [one for one in result.ranking if one.strategy in result.tied and one.strategy != result.recommended]
        names = ", ".join(one_line(one.strategy) for one in others)
        told = all(one.unranked is None and one.cannot is None for one in result.ranking if one.strategy in result.tied)
        how = "Tie" if told else "Cannot tell which is fastest"
        return f"{how}: take {one_line(result.recommended)} ({'' if told else 'may be '}as fast: {names})"
    return f"Take {one_line(result.recommended)}"


def _why(result: Recommendation) -> list[str]:
    lines = [one_line(result.reason)]
    if result.gain is not None:
        saved = f"saves {result.gain.ms:.2f} ms per step ({result.gain.percent:.1f} %)"
        lines.append(f"{saved} against {one_line(result.gain.over)}{'' if result.gain.measured else ', by prediction'}")
    if result.ceiling is not None:
        left = result.ceiling.percent_left
        more = "" if left is None else f"; {max(0.0, left):.1f} % of the step could still be saved at most"
        lines.append(f"without any exchange the step takes {result.ceiling.step_ms:.2f} ms{more}")
    return lines


def _ranking(result: Recommendation, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("strategy", no_wrap=True)
    table.add_column("predicted ms", justify="right")
    if wide:
        table.add_column("exposed ms", justify="right")
    measured = result.basis == "measured"
    if measured:
        table.add_column("measured ms", justify="right", no_wrap=True)
        table.add_column("slower by", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right")
    for ranked in (entry for entry in result.ranking if entry.cannot is None):
        cells = [one_line(ranked.strategy), _ms(ranked.predicted_step_ms)]
        if wide:
            cells.append(_ms(ranked.exposed_ms))
        if measured:
            cells += [ranked.step_words(), _slower(ranked)]
        cells.append(figures.throughput(ranked.samples_per_s))
        chosen = ranked.strategy == result.recommended
        table.add_row(*map(Text, cells), style=_GOOD if chosen else _DIM if ranked.strategy == INDEPENDENT else "")
    return table


def _scaling(result: Recommendation) -> Table:
    table = Table(
        title=Text(f"Expected with {one_line(result.scaling[0].strategy)}, the same batch on each device"),
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("devices", "step ms", "samples/s", "speedup", "efficiency"):
        table.add_column(heading, justify="right")
    for expected in result.scaling:
        rate = figures.throughput(expected.samples_per_s)
        speedup, efficiency = f"{expected.speedup:.2f}", f"{expected.efficiency:.1%}"
        table.add_row(str(expected.devices), f"{expected.step_ms:.2f}", rate, speedup, efficiency)
    return table


def _notes(result: Recommendation) -> list[str]:
    notes = [one_line(note) for note in result.notes]
    if result.assumed:
        taken = ", ".join(f"{one_line(what)} {one_line(value)}" for what, value in result.assumed.items())
        notes.append(f"not measured, and taken as usual: {taken}")
    return notes


def _ms(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _slower(ranked: Ranked) -> str:
    if ranked.unranked is not None:
        return "not known"
    if ranked.slower_percent is None or ranked.slower_ci95 is None or ranked.strategy == INDEPENDENT:
        return ""
    if ranked.slower_percent == 0.0 and ranked.slower_ci95 == (0.0, 0.0):
        return "fastest"
    return f"{ranked.slower_percent:.1f} ± {(ranked.slower_ci95[1] - ranked.slower_ci95[0]) / 2:.1f} %"
