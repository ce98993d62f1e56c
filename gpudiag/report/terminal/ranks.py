"""The table per rank, in the form that the terminal's width allows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import BUCKETS
from gpudiag.report import figures
from gpudiag.report.layout import plain_table
from gpudiag.report.palette import LABELS
from gpudiag.report.rank_rows import Row

#: A bucket below this on every rank would be a column of zeros.
_SEEN_MS = 0.005
#: Heading of the communication that runs beside compute, which is no bucket, and what it means.
OVERLAPPED = "overlapped"
OVERLAPPED_WORDS = "communication during compute (costs no step time by itself)"


def buckets_seen(rows: Sequence[Row]) -> list[str]:
    """The buckets that some row has, in their order."""
    seen = min([_SEEN_MS, *(_SEEN_MS * row.step_ms for row in rows if row.step_ms > 0)])
    return [bucket for bucket in BUCKETS if any(row.buckets_ms[bucket] >= seen for row in rows)]


def overlaps(rows: Sequence[Row]) -> bool:
    """Whether some row has communication beside its compute."""
    return any(row.hidden_ms >= _SEEN_MS for row in rows)


def rank_table(rows: Sequence[Row], console: Console) -> RenderableType:
    """Milliseconds per step by rank and bucket.

    The first of these that fits: a line per rank with shares in percent, the same without them, a line per bucket with
    a column per rank, and that in as many pieces as it takes.
    """
    for table in (_line_per_rank(rows, shares=True), _line_per_rank(rows, shares=False), _column_per_rank(rows)):
        if _fits(table, console):
            return table
    for at_once in range(len(rows) - 1, 0, -1):
        pieces = [_column_per_rank(rows[start : start + at_once]) for start in range(0, len(rows), at_once)]
        if all(_fits(piece, console) for piece in pieces):
            break
    return Group(*(part for piece in pieces for part in (piece, Text())))


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def _line_per_rank(rows: Sequence[Row], *, shares: bool) -> Table:
    buckets = buckets_seen(rows)
    overlapped = [OVERLAPPED] if overlaps(rows) else []
    headings = ("ms per step", *(LABELS[bucket] for bucket in buckets), "step", *overlapped)
    table = plain_table(headings, left=("ms per step",), no_wrap=True)
    for row in rows:
        cells = [_cell(row.buckets_ms[bucket], row, share=shares) for bucket in buckets]
        table.add_row(Text(row.label), *cells, _step(row), *([_hidden(row)] if overlapped else []))
    return table


def _column_per_rank(rows: Sequence[Row]) -> Table:
    table = plain_table(("ms", *(row.label.removeprefix("rank ") for row in rows)), left=("ms",), no_wrap=True)
    for bucket in buckets_seen(rows):
        table.add_row(LABELS[bucket], *(_cell(row.buckets_ms[bucket], row, share=False) for row in rows))
    table.add_row(Text("step", style="bold"), *(_step(row) for row in rows))
    if overlaps(rows):
        table.add_row(Text(OVERLAPPED, style="dim"), *(_hidden(row) for row in rows))
    return table


def _cell(value_ms: float, row: Row, *, share: bool) -> Text:
    text = Text(figures.milliseconds(value_ms, beside=row.step_ms), style="" if value_ms >= _SEEN_MS else "dim")
    if share:
        text.append(f" {figures.percent(value_ms, row.step_ms).replace(' ', ''):>4}", style="dim")
    return text


def _step(row: Row) -> Text:
    return Text(figures.milliseconds(row.step_ms), style="bold")


def _hidden(row: Row) -> Text:
    return Text(figures.milliseconds(row.hidden_ms, beside=row.step_ms), style="dim")
