"""A recommendation in a terminal: the verdict in words, the ranking as a table, what to change, what to expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpudiag.reporting.printable import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from gpudiag.model.recommendation import Ranked, Recommendation

_GOOD, _DIM = "bold green", "dim"
#: Narrower than this the table leaves out the prediction's parts.
_WIDE = 90


def render_recommendation(found: Recommendation, console: Console) -> None:
    """Draw it."""
    console.print(Text(_title(found), style="bold"))
    console.print()
    console.print(Text(_verdict(found), style=_GOOD))
    for line in _why(found):
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    console.print()
    console.print(_ranking(found, wide=console.width >= _WIDE))
    cannot = [one for one in found.ranking if one.cannot is not None]
    if cannot:
        console.print()
        console.print(Text("Left out", style="bold"))
        for one in cannot:
            console.print(
                Padding(Text(f"{one_line(one.strategy)}: {one_line(one.cannot or '')}"), (0, 0, 0, 2), expand=False)
            )
    if found.scaling:
        console.print()
        console.print(_scaling(found))
    console.print()
    console.print(Text("To use it", style="bold"))
    console.print(
        Padding(Text(f"gpudiag profile {one_line(found.workload)} {' '.join(found.flags)}"), (0, 0, 0, 2), expand=False)
    )
    if found.code:
        console.print(Text("In a loop of your own", style="bold"))
        console.print(Padding(Text(printable(found.code, keep="\n")), (0, 0, 0, 2), expand=False))
    for note in _notes(found):
        console.print(Text(f"Note: {note}", style="yellow"))


def _title(found: Recommendation) -> str:
    device = one_line(found.device_name) or "device"
    batch = f", batch {found.batch_size_per_device} each" if found.batch_size_per_device else ""
    access = {True: ", peer access", False: ", no peer access", None: ""}[found.peer_access]
    how = "measured by turns" if found.basis == "measured" else "predicted, nothing was run"
    return f"{one_line(found.workload)} on {found.devices} x {device}{batch}{access}: {how}"


def _verdict(found: Recommendation) -> str:
    if found.verdict == "tie":
        others = ", ".join(one_line(label) for label in found.tied if label != found.recommended)
        return f"Tie: take {one_line(found.recommended)} (as fast: {others})"
    return f"Take {one_line(found.recommended)}"


def _why(found: Recommendation) -> list[str]:
    lines = [one_line(found.reason)]
    if found.gain is not None:
        saved = f"saves {found.gain.ms:.2f} ms per step ({found.gain.percent:.1f} %)"
        lines.append(f"{saved} against {one_line(found.gain.over)}{'' if found.gain.measured else ', by prediction'}")
    if found.ceiling is not None:
        left = found.ceiling.percent_left
        more = "" if left is None else f"; {max(0.0, left):.1f} % of the step is left to gain at most"
        lines.append(f"without any exchange the step takes {found.ceiling.step_ms:.2f} ms{more}")
    return lines


def _ranking(found: Recommendation, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("strategy", no_wrap=True)
    table.add_column("predicted ms", justify="right")
    if wide:
        table.add_column("exposed ms", justify="right")
    measured = found.basis == "measured"
    if measured:
        table.add_column("measured ms", justify="right", no_wrap=True)
        table.add_column("slower by", justify="right", no_wrap=True)
    table.add_column("samples/s", justify="right")
    for one in found.ranking:
        if one.cannot is not None:
            continue
        cells = [one_line(one.strategy), _ms(one.predicted_step_ms)]
        if wide:
            cells.append(_ms(one.exposed_ms))
        if measured:
            cells += [_with_interval(one), _slower(one)]
        cells.append("—" if one.samples_per_s is None else f"{one.samples_per_s:.0f}")
        chosen = one.strategy == found.recommended
        table.add_row(*map(Text, cells), style=_GOOD if chosen else _DIM if one.strategy == "independent" else "")
    return table


def _scaling(found: Recommendation) -> Table:
    table = Table(
        title=Text(f"Expected with {one_line(found.scaling[0].strategy)}, the same batch on each device"),
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for heading in ("devices", "step ms", "samples/s", "speedup", "efficiency"):
        table.add_column(heading, justify="right")
    for one in found.scaling:
        table.add_row(
            str(one.devices),
            f"{one.step_ms:.2f}",
            "—" if one.samples_per_s is None else f"{one.samples_per_s:.0f}",
            f"{one.speedup:.2f}",
            f"{one.efficiency:.1%}",
        )
    return table


def _notes(found: Recommendation) -> list[str]:
    notes = [one_line(note) for note in found.notes]
    if found.assumed:
        taken = ", ".join(f"{one_line(what)} {one_line(value)}" for what, value in found.assumed.items())
        notes.append(f"not measured, and taken as usual: {taken}")
    return notes


def _ms(value: float | None) -> str:
    return "—" if value is None else f"{value:.2f}"


def _with_interval(one: Ranked) -> str:
    if one.measured_step_ms is None or one.ci95 is None:
        return "—"
    return f"{one.measured_step_ms:.2f} ± {(one.ci95[1] - one.ci95[0]) / 2:.2f}"


def _slower(one: Ranked) -> str:
    if one.slower_percent is None or one.slower_ci95 is None or one.strategy == "independent":
        return ""
    if one.slower_percent == 0.0 and one.slower_ci95 == (0.0, 0.0):
        return "fastest"
    return f"{one.slower_percent:.1f} ± {(one.slower_ci95[1] - one.slower_ci95[0]) / 2:.1f} %"
