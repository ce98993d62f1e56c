"""Print measured bandwidth: matrices colored by the share of the ceiling, collectives, findings."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.benchmarks.gradient_bandwidth import ModelBuckets
from gpudiag.model.facts import Facts
from gpudiag.model.sanitize import one_line
from gpudiag.report import figures
from gpudiag.report.console import plain_grid, plain_table, print_trimmed, under_headings
from gpudiag.report.facts import tables, words
from gpudiag.report.facts.topology import dim_lines, findings_list

_LONGEST = 400  # characters of a ceiling's source
#: Maximum length of a heading on one line.
_LONGEST_HEADING = 12
#: Smallest share of the ceiling for each color. A healthy link reaches 80 to 97 % of its ceiling.
_HEAT = ((0.75, "green"), (0.5, "yellow"), (0.25, "dark_orange"), (0.0, "red"))


def render_bandwidth(facts: Facts, console: Console) -> None:
    """Print measured bandwidths, latencies and findings of a machine."""
    width = console.width
    host = tables.host_matrix(facts)
    collectives = tables.collective_matrix(facts)
    sections: list[tuple[str, RenderableType | None]] = [
        *([(host.title, _matrix(host, width))] if host is not None else []),
        *((matrix.title, _matrix(matrix, width, corner="from \\ to")) for matrix in tables.peer_matrices(facts)),
        ("Latency", _latency(facts) if facts.latency else None),
        *([(collectives.title, _matrix(collectives, width))] if collectives is not None else []),
        ("Latency and bandwidth per transport (fit)", _fits(facts) if facts.collective_fits else None),
        ("Host memory, copied bytes counted once", _host_memory(facts) if tables.host_memory_rows(facts) else None),
        ("Ceilings", _ceilings(facts)),
        ("Findings", findings_list(facts.findings)),
        ("Not measured", _skipped(facts) if facts.skipped else None),
    ]
    print_trimmed(console, Group(*_header(facts), *under_headings(sections)))


def _header(facts: Facts) -> list[Text]:
    name = one_line(facts.host.name) or "this machine"
    devices = words.models(facts.gpus) if facts.gpus else "no NVIDIA GPU"
    return [Text(f"{name} · {devices}", style="bold"), Text(_how_measured(facts), style="dim")]


def _how_measured(facts: Facts) -> str:
    """Return a line with the duration of measuring and the result of data verification."""
    if not (facts.bandwidth or facts.collectives):
        return "nothing was measured; run `gpudiag bandwidth`"
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


def _matrix(matrix: tables.Matrix, width: int, corner: str = "") -> RenderableType:
    """Return a table of figures with the shares of the ceiling below. A table wider than `width` is split.

    `corner` is the heading of the rows' labels.
    """
    label_width = max([len(label) for label, _ in matrix.rows] + [len(corner), len("% of ceiling") * matrix.by_column])
    parts: list[RenderableType] = []
    for first, last in _spans(_column_widths(matrix), width - label_width):
        parts += [Text(), _columns(matrix, first, last, corner)] if parts else [_columns(matrix, first, last, corner)]
    shares = [cell.share for cell in matrix.cells() if cell.of_ceiling and cell.share is not None]
    if shares and not matrix.by_column:
        parts.append(Text(f"{_range(shares)} of the ceiling", style="dim"))
    if matrix.note:
        parts.append(Text(matrix.note, style="dim"))
    return Group(*parts)


def _columns(matrix: tables.Matrix, first: int, last: int, corner: str) -> Table:
    """Return the table of the columns from `first` up to `last`, without `last`; `corner` is the first heading."""
    table = plain_table(dim=True)
    table.add_column(corner, style="bold", no_wrap=True)
    for heading in matrix.columns[first:last]:
        table.add_column(heading, justify="right", max_width=_LONGEST_HEADING)
    for label, cells in matrix.rows:
        table.add_row(Text(label), *map(_figure, cells[first:last]))
    if matrix.by_column:
        for label, texts in _shares_by_column(matrix):
            table.add_row(Text(label, style="dim"), *(Text(text, style="dim") for text in texts[first:last]))
    return table


def _column_widths(matrix: tables.Matrix) -> list[int]:
    """Return the width of each column in characters, including the space before it."""
    widths = []
    for i, heading in enumerate(matrix.columns):
        cells = [len(_figure(row[i]).plain) for _, row in matrix.rows]
        # Shares below a column have up to 5 characters, as in 80-97.
        widths.append(2 + max([*cells, min(_LONGEST_HEADING, len(heading)), 5 * matrix.by_column]))
    return widths


def _spans(widths: list[int], room: int) -> list[tuple[int, int]]:
    """Return (first column, end) of each table, of at most `room` characters but at least one column."""
    spans, first, used = [], 0, 0
    for i, width in enumerate(widths):
        if used + width > room and i > first:
            spans.append((first, i))
            first, used = i, 0
        used += width
    return [*spans, (first, len(widths))]


def _shares_by_column(matrix: tables.Matrix) -> list[tuple[str, list[str]]]:
    """Return two rows with the share of the ceiling per column: of single GPUs, and of all GPUs at once."""
    rows = []
    for label, at_once in (("% of ceiling", False), ("% at once", True)):
        texts = []
        for column in range(len(matrix.columns)):
            cells = [row[column] for name, row in matrix.rows if (name == tables.AT_ONCE) == at_once]
            shares = [cell.share for cell in cells if cell is not None and cell.of_ceiling and cell.share is not None]
            texts.append(_range(shares).removesuffix(" %") if shares else "")
        if any(texts):
            rows.append((label, texts))
    return rows


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
    """Return a table of median latencies, with their range unless it is noise (less than 5 % of the median)."""
    table = plain_grid({}, {"justify": "right", "no_wrap": True}, {"style": "dim", "no_wrap": True})
    for what, median, least, most in tables.latency_rows(facts):
        spread = "" if most - least < 0.05 * median else f"{least:.2f} to {most:.2f}"
        table.add_row(what, f"{median:.2f} µs", spread)
    return table


def _fits(facts: Facts) -> RenderableType:
    """Return a table of the fitted latency and bandwidth of each transport."""
    table = plain_table(("transport", "latency", "bus bandwidth", "error"), left=("transport",), dim=True)
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
    """Return a table of the known ceilings, and a line for each ceiling that a measurement exceeds."""
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


def render_gradient_bandwidth(buckets: ModelBuckets, console: Console) -> None:
    """Print the bus bandwidth of all-reduces of a model's gradient buckets: a row per size, a column per transport.

    The last row has the time of all buckets of a step. Skipped transports follow with their reasons.
    """
    transports = list(dict.fromkeys(measured.strategy for measured in buckets.collectives))
    sizes = sorted({measured.bytes for measured in buckets.collectives})
    busbw = {(measured.strategy, measured.bytes): measured.busbw_gb_per_s for measured in buckets.collectives}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("MB", *map(one_line, transports)):
        table.add_column(heading, justify="right")
    for size in sizes:
        rates = (busbw.get((transport, size)) for transport in transports)
        table.add_row(f"{size / 1e6:.3g}", *(figures.UNKNOWN if rate is None else f"{rate:.3g}" for rate in rates))
    steps = (buckets.step_ms(transport) for transport in transports)
    totals = (figures.UNKNOWN if step is None else f"{step:.1f}" for step in steps)
    table.add_row("all, ms", *totals, style="bold")
    title = (
        f"All-reduce of {one_line(buckets.workload)}'s {len(buckets.bucket_bytes)} buckets, "
        f"{sum(buckets.bucket_bytes) / 1e6:.3g} MB per step: GB/s of bus bandwidth"
    )
    console.print()
    console.print(Text(title, style="bold"))
    console.print(table)
    for name, why in buckets.skipped.items():
        console.print(Text(f"not measured: {one_line(name)}: {one_line(why)}"))
