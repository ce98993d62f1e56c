"""What a machine's links carry, in a terminal: matrices coloured by share of the ceiling, transports, findings."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from gpudiag.model.facts import Facts
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.facts import tables, words
from gpudiag.report.facts.topology import dim_lines, findings_list
from gpudiag.report.layout import plain_grid, plain_table, print_trimmed, under_headings

_LONGEST = 400
#: A longer heading takes two lines.
_LONGEST_HEADING = 12
#: Share of the ceiling from which a figure is drawn in each colour; a healthy link reaches 80 to 97 % of it.
_HEAT = ((0.75, "green"), (0.5, "yellow"), (0.25, "dark_orange"), (0.0, "red"))


def render_bandwidth(facts: Facts, console: Console) -> None:
    """Print the figures on `console`, at its width."""
    print_trimmed(console, bandwidth_report(facts, console.width))


def bandwidth_report(facts: Facts, width: int) -> Group:
    """The figures as one renderable for a terminal of `width` columns."""
    sections: list[tuple[str, RenderableType]] = []
    host = tables.host_matrix(facts)
    if host is not None:
        sections.append((host.title, _matrix(host, width)))
    sections += [(matrix.title, _matrix(matrix, width, arrow="from \\ to")) for matrix in tables.peer_matrices(facts)]
    if facts.latency:
        sections.append(("Latency", _latency(facts)))
    collectives = tables.collective_matrix(facts)
    if collectives is not None:
        sections.append((collectives.title, _matrix(collectives, width)))
    if facts.collective_fits:
        sections.append(("Each transport in two figures", _fits(facts)))
    memory = tables.host_memory_rows(facts)
    if memory:
        sections.append(("Host memory, copied bytes counted once", _host_memory(facts)))
    ceilings = _ceilings(facts)
    if ceilings is not None:
        sections.append(("Ceilings", ceilings))
    sections.append(("Findings", findings_list(facts.findings)))
    if facts.skipped:
        sections.append(("Not measured", _skipped(facts)))
    return Group(*_header(facts), *under_headings(sections))


def _header(facts: Facts) -> list[Text]:
    name = one_line(facts.host.name) or "this machine"
    what = words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU"
    return [Text(f"{name} · {what}", style="bold"), Text(_how(facts), style="dim")]


def _how(facts: Facts) -> str:
    """How long it took and what was checked, in a line."""
    if not (facts.bandwidth or facts.collectives):
        return "nothing was measured; `gpudiag bandwidth` does"
    total: Any = facts.probes.get("total")
    parts = []
    if isinstance(total, dict) and isinstance(total.get("seconds"), int | float):
        parts.append(f"measured in {total['seconds']:.1f} s")
    wrong, unchecked, paths = tables.checks(facts)
    if wrong:
        parts.append(f"DATA CORRUPTED on {wrong} of {paths} paths")
    elif unchecked:
        parts.append(f"data verified on {paths - unchecked} of {paths} paths")
    else:
        parts.append("data verified on every path")
    return ", ".join(parts)


def _heat(share: float | None) -> str:
    return "" if share is None else next((style for least, style in _HEAT if share >= least), "red")


def _matrix(matrix: tables.Matrix, width: int, arrow: str = "") -> RenderableType:
    """A table of figures; where it is too wide, several below each other; below it, the shares of the ceiling."""
    label_width = max([len(label) for label, _ in matrix.rows] + [len(arrow), len("% of ceiling") * matrix.by_column])
    parts: list[RenderableType] = []
    for first, last in _spans(_column_widths(matrix), width - label_width):
        table = plain_table(dim=True)
        table.add_column(arrow, style="bold", no_wrap=True)
        for heading in matrix.columns[first:last]:
            table.add_column(heading, justify="right", max_width=_LONGEST_HEADING)
        for label, cells in matrix.rows:
            table.add_row(Text(label), *(_figure(cell) for cell in cells[first:last]))
        if matrix.by_column:
            for label, texts in _shares_by_column(matrix):
                table.add_row(Text(label, style="dim"), *(Text(text, style="dim") for text in texts[first:last]))
        parts += [Text(), table] if parts else [table]
    shares = [cell.share for cell in matrix.cells() if cell.of_ceiling and cell.share is not None]
    if shares and not matrix.by_column:
        parts.append(Text(f"{_range(shares)} of the ceiling", style="dim"))
    if matrix.note:
        parts.append(Text(matrix.note, style="dim"))
    return Group(*parts)


def _column_widths(matrix: tables.Matrix) -> list[int]:
    """Characters that each column takes, with the space before it."""
    widths = []
    for i, heading in enumerate(matrix.columns):
        figures_here = [len(_figure(cells[i]).plain) for _, cells in matrix.rows]
        widths.append(2 + max([*figures_here, min(_LONGEST_HEADING, len(heading)), 5 * matrix.by_column]))
    return widths


def _spans(widths: list[int], room: int) -> list[tuple[int, int]]:
    """Columns first to last (not included) of as many tables as it takes for each to fit into `room` characters."""
    spans, first, used = [], 0, 0
    for i, width in enumerate(widths):
        if used + width > room and i > first:
            spans.append((first, i))
            first, used = i, 0
        used += width
    return [*spans, (first, len(widths))]


def _shares_by_column(matrix: tables.Matrix) -> list[tuple[str, list[str]]]:
    """Rows of the shares of the ceiling in each column, of the GPUs alone and of all at once."""
    groups = {
        "% of ceiling": [cells for label, cells in matrix.rows if label != tables.AT_ONCE],
        "% at once": [cells for label, cells in matrix.rows if label == tables.AT_ONCE],
    }
    shares_of = []
    for label, rows in groups.items():
        texts = []
        for column in range(len(matrix.columns)):
            in_column = [cell for row in rows if (cell := row[column]) is not None and cell.of_ceiling]
            shares = [cell.share for cell in in_column if cell.share is not None]
            texts.append(_range(shares).removesuffix(" %") if shares else "")
        if any(texts):
            shares_of.append((label, texts))
    return shares_of


def _figure(cell: tables.Cell | None) -> Text:
    if cell is None:
        return Text("·", style="dim")
    if cell.corrupt:
        return Text(f"{figures.rate(cell.value)}!", style="bold white on red")
    return Text(figures.rate(cell.value), style=_heat(cell.share))


def _range(shares: list[float]) -> str:
    low, high = 100 * min(shares), 100 * max(shares)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f}{figures.EN_DASH}{high:.0f} %"


def _latency(facts: Facts) -> RenderableType:
    table = plain_grid({}, {"justify": "right", "no_wrap": True}, {"style": "dim", "no_wrap": True})
    for what, median, least, most in tables.latency_rows(facts):
        spread = "" if most - least < 0.05 * median else f"{least:.2f} to {most:.2f}"
        table.add_row(what, f"{median:.2f} µs", spread)
    return table


def _fits(facts: Facts) -> RenderableType:
    table = plain_table(("transport", "latency", "bus bandwidth", "off by"), left=("transport",), dim=True)
    for name, fit in tables.fits(facts):
        table.add_row(
            Text(one_line(name)[:40]),
            f"{fit.latency_us:.1f} µs",
            f"{figures.rate(fit.busbw_gb_per_s)} GB/s",
            f"≤ {100 * fit.worst_relative_error:.0f} %",
        )
    return table


def _host_memory(facts: Facts) -> RenderableType:
    table = plain_grid()
    for what, record in tables.host_memory_rows(facts):
        mark = " DATA CORRUPTED" if record.verified is False else ""
        table.add_row(Text(one_line(what)[:40]), f"{figures.rate(record.gb_per_s)} GB/s{mark}")
    return table


def _ceilings(facts: Facts) -> RenderableType | None:
    known = tables.ceiling_sources(facts)
    above = [Text(one_line(line), style="yellow") for line in tables.above_ceilings(facts)]
    if not known:
        return Group(*above) if above else None
    table = plain_grid({"justify": "right", "no_wrap": True}, {"style": "dim"})
    for source, value in known:
        table.add_row(f"{figures.rate(value)} GB/s", Text(one_line(source)[:_LONGEST]))
    return Group(table, *above)


def _skipped(facts: Facts) -> RenderableType:
    return Group(*dim_lines([f"{one_line(skipped.what)}: {one_line(skipped.why)}" for skipped in facts.skipped]))
