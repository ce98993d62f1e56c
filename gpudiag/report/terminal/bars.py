"""One stacked bar per rank: the mean step, cut into its buckets, to scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpudiag.model.analysis import BUCKETS
from gpudiag.report import figures
from gpudiag.report.layout import plain_grid
from gpudiag.report.palette import LABELS, Fill
from gpudiag.report.rank_rows import Row

#: Longer bars than this say no more.
WIDEST_BAR = 100


def stacked_bars(rows: Sequence[Row], fill: Mapping[str, Fill], width: int) -> Table:
    """A bar for each row, all to the scale of the longest step."""
    longest = max((row.step_ms for row in rows), default=0.0)
    labels = max((len(row.label) for row in rows), default=0)
    times = max((len(figures.milliseconds(row.step_ms)) for row in rows), default=0)
    cells = max(min(width - labels - times - len(" " * 2 + " ms"), WIDEST_BAR), 1)
    table = plain_grid({"no_wrap": True}, {"no_wrap": True}, {"no_wrap": True, "justify": "right"}, gap=1)
    for row in rows:
        share = row.step_ms / longest if longest > 0 else 0.0
        table.add_row(
            Text(row.label),
            stacked_bar(row.buckets_ms, fill, round(cells * share)),
            Text(f"{figures.milliseconds(row.step_ms)} ms"),
        )
    return table


def stacked_bar(buckets_ms: Mapping[str, float], fill: Mapping[str, Fill], cells: int) -> Text:
    """One bar of `cells` characters, apportioned to the buckets."""
    bar = Text()
    for bucket, count in zip(BUCKETS, apportion([buckets_ms.get(b, 0.0) for b in BUCKETS], cells), strict=True):
        bar.append(fill[bucket].glyph * count, style=fill[bucket].style)
    return bar


def apportion(parts: Sequence[float], cells: int) -> list[int]:
    """Whole cells for each part, in proportion, summing to `cells` (Hamilton's method); 0 for what is no share.

    Worked example: 29.4, 0.8 and 26.1 of 56.3 in 10 cells are 5.22, 0.14 and 4.64: floors 5, 0, 4; the one cell left
    goes to the largest remainder, so 5, 0, 5.
    """
    shares = [part if math.isfinite(part) and part > 0 else 0.0 for part in parts]
    total = sum(shares)  # not fsum, which raises where a hostile file makes the sum infinite
    if total <= 0 or not math.isfinite(total):
        return [0] * len(parts)
    exact = [share / total * cells for share in shares]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: cells - sum(counts)]:
        counts[index] += 1
    return counts


def legend(buckets: Sequence[str], fill: Mapping[str, Fill], width: int) -> Group:
    """What each fill means, for the buckets that occur; a fill and its name stay on one line."""
    lines = [Text()]
    for bucket in buckets:
        entry = Text("  " if lines[-1] else "")
        entry.append(fill[bucket].glyph, style=fill[bucket].style).append(f" {LABELS[bucket]}")
        if len(lines[-1]) + len(entry) > width:
            entry = entry[2:]
            lines.append(Text())
        lines[-1].append_text(entry)
    return Group(*lines)
