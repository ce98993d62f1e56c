"""Show the step time per rank as stacked bars, and as a table that fits the terminal's width.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import BUCKETS
from gpudiag.report import figures
from gpudiag.report.console import plain_grid, plain_table
from gpudiag.report.palette import LABELS, Fill
from gpudiag.report.rank_rows import OVERLAPPED, RankRow, buckets_seen, overlaps

#: Maximum length of a bar; longer bars would show no more detail.
WIDEST_BAR = 100
#: Smallest time that is not dimmed.
_SEEN_MS = 0.005


def stacked_bars(rows: Sequence[RankRow], fill: Mapping[str, Fill], width: int, notes: Sequence[str] = ()) -> Table:
    """Return a bar per row in `width` characters, with its note if there are notes. The longest step sets the scale."""
    noted = any(notes)
    columns: list[dict[str, Any]] = [{"no_wrap": True}, {"no_wrap": True}, {"no_wrap": True, "justify": "right"}]
    table = plain_grid(*columns, *([{"no_wrap": True}] if noted else []), gap=1)
    for row, note, cells in zip(rows, notes or [""] * len(rows), _bar_lengths(rows, width, notes), strict=True):
        table.add_row(
            Text(row.label),
            stacked_bar(row.buckets_ms, fill, cells),
            Text(f"{figures.milliseconds(row.step_ms)} ms"),
            *([Text(f" {note}", style="dim")] if noted else []),
        )
    return table


def _bar_lengths(rows: Sequence[RankRow], width: int, notes: Sequence[str]) -> list[int]:
    """Return the number of characters of each bar in a terminal of `width` columns."""
    longest = max((row.step_ms for row in rows), default=0.0)
    labels = max((len(row.label) for row in rows), default=0)
    times = max((len(figures.milliseconds(row.step_ms)) for row in rows), default=0)
    noted = max(map(len, notes), default=0)
    # Two gaps and ` ms` are in each line. A note has a gap and a space before it.
    most = max(min(width - labels - times - len(" " * 2 + " ms") - (noted + 2 if noted else 0), WIDEST_BAR), 1)
    return [round(most * row.step_ms / longest) if longest > 0 else 0 for row in rows]


def buckets_drawn(rows: Sequence[RankRow], width: int, notes: Sequence[str] = ()) -> list[str]:
    """Return the buckets that have a character in some bar of `stacked_bars`."""
    drawn: set[str] = set()
    for row, cells in zip(rows, _bar_lengths(rows, width, notes), strict=True):
        counts = apportion([row.buckets_ms.get(bucket, 0.0) for bucket in BUCKETS], cells)
        drawn |= {bucket for bucket, count in zip(BUCKETS, counts, strict=True) if count}
    return [bucket for bucket in BUCKETS if bucket in drawn]


def stacked_bar(buckets_ms: Mapping[str, float], fill: Mapping[str, Fill], cells: int) -> Text:
    """Return one bar of `cells` characters, divided among the buckets."""
    bar = Text()
    for bucket, count in zip(BUCKETS, apportion([buckets_ms.get(b, 0.0) for b in BUCKETS], cells), strict=True):
        bar.append(fill[bucket].glyph * count, style=fill[bucket].style)
    return bar


def apportion(shares: Sequence[float], cells: int) -> list[int]:
    """Divide `cells` in proportion to the shares (Hamilton's method). Invalid values get 0.

    Worked example. The shares are 29.4, 0.8 and 26.1 of 56.3, which are 5.22, 0.14 and 4.64 of 10 cells. Rounded down
    they are 5, 0 and 4. The remaining cell goes to the largest remainder, so that the result is 5, 0 and 5.
    """
    valid = [share if math.isfinite(share) and share > 0 else 0.0 for share in shares]
    total = sum(valid)  # fsum would raise if a hostile file makes the sum infinite
    if total <= 0 or not math.isfinite(total):
        return [0] * len(shares)
    exact = [share / total * cells for share in valid]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: cells - sum(counts)]:
        counts[index] += 1
    return counts


def legend(buckets: Sequence[str], fill: Mapping[str, Fill], width: int) -> Group:
    """Return the meaning of each fill. A fill and its name are on the same line."""
    entries = [
        Text().append(fill[bucket].glyph, style=fill[bucket].style).append(f" {LABELS[bucket]}") for bucket in buckets
    ]
    return joined(entries, width, "  ")


def joined(items: Sequence[Text], width: int, separator: str) -> Group:
    """Return the items in as few lines as possible. An item is divided only if it is longer than a line."""
    lines: list[Text] = []
    for item in items:
        if lines and len(lines[-1]) + len(separator) + len(item) <= width:
            lines[-1].append(separator).append_text(item)
            continue
        if lines:
            lines[-1].append(separator.rstrip())
        lines.append(item.copy())
    return Group(*lines)


def rank_table(rows: Sequence[RankRow], console: Console) -> RenderableType:
    """Return milliseconds per step by rank and bucket, in the first of these forms that fits the width:

    - a line per rank with shares in percent,
    - a line per rank without shares,
    - a line per bucket with a column per rank,
    - the last form, split into as many tables as necessary.
    """
    for table in (_line_per_rank(rows, shares=True), _line_per_rank(rows, shares=False), _column_per_rank(rows)):
        if _fits(table, console):
            return table
    for columns in range(max(len(rows) - 1, 1), 0, -1):  # one column per table, even if it does not fit
        pieces = [_column_per_rank(rows[start : start + columns]) for start in range(0, len(rows), columns)]
        if all(_fits(piece, console) for piece in pieces):
            break
    return Group(*(item for piece in pieces for item in (piece, Text())))


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def _line_per_rank(rows: Sequence[RankRow], *, shares: bool) -> Table:
    """Return a line per rank with a column per bucket in ms, and with `shares` also in percent of the step."""
    buckets = buckets_seen(rows)
    overlapped = [OVERLAPPED] if overlaps(rows) else []
    headings = ("ms per step", *(LABELS[bucket] for bucket in buckets), "step", *overlapped)
    table = plain_table(headings, left=("ms per step",), no_wrap=True)
    for row in rows:
        cells = [_cell(row.buckets_ms[bucket], row, share=shares) for bucket in buckets]
        table.add_row(Text(row.label), *cells, _step_cell(row), *([_hidden_cell(row)] if overlapped else []))
    return table


def _column_per_rank(rows: Sequence[RankRow]) -> Table:
    """Return a line per bucket with a column per rank, in ms."""
    table = plain_table(("ms", *(row.label.removeprefix("rank ") for row in rows)), left=("ms",), no_wrap=True)
    for bucket in buckets_seen(rows):
        table.add_row(LABELS[bucket], *(_cell(row.buckets_ms[bucket], row, share=False) for row in rows))
    table.add_row(Text("step", style="bold"), *(_step_cell(row) for row in rows))
    if overlaps(rows):
        table.add_row(Text(OVERLAPPED, style="dim"), *(_hidden_cell(row) for row in rows))
    return table


def _cell(value_ms: float, row: RankRow, *, share: bool) -> Text:
    text = Text(figures.milliseconds(value_ms, beside=row.step_ms), style="" if value_ms >= _SEEN_MS else "dim")
    if share:
        text.append(f" {figures.percent(value_ms, row.step_ms).replace(' ', ''):>4}", style="dim")
    return text


def _step_cell(row: RankRow) -> Text:
    return Text(figures.milliseconds(row.step_ms), style="bold")


def _hidden_cell(row: RankRow) -> Text:
    return Text(figures.milliseconds(row.hidden_ms, beside=row.step_ms), style="dim")
