"""From A to B as a waterfall: each bucket's bar begins where the one above it ended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.diff_words import signed
from gpudiag.reporting.palette import LABELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from gpudiag.model.diff import Diff

#: A bucket below this in both runs would be a row of zeros.
_SEEN_MS = 0.005
#: Narrower bars show nothing: the columns of A and B make room for them.
_NARROWEST_BAR = 12
_WIDEST_BAR = 60
_GAP = 2


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    before_ms: float
    after_ms: float
    difference_ms: float


@dataclass(frozen=True, slots=True)
class Pens:
    """What a bar is drawn with: longer and shorter differ by character, not only by colour."""

    longer: str
    shorter: str
    nothing: str


def pens(console: Console) -> Pens:
    """Blocks, or what ASCII has."""
    if console.encoding.lower().startswith("utf"):
        return Pens("█", "░", "│")
    return Pens("#", "=", "|")


def waterfall(diff: Diff, console: Console) -> Table:
    """A line per bucket that either run has, and one for the step, which they sum to."""
    rows = [
        _Row(LABELS[one.bucket], one.before_ms, one.after_ms, one.difference_ms)
        for one in diff.buckets
        if max(abs(one.before_ms), abs(one.after_ms)) >= _SEEN_MS
    ]
    if abs(diff.unattributed_ms) >= _SEEN_MS:
        rows.append(_Row("unattributed", 0.0, 0.0, diff.unattributed_ms))
    step = diff.step("profiled")
    total = _Row("step", step.before_ms, step.after_ms, step.difference_ms)
    times = max(step.before_ms, step.after_ms)
    changes = max((abs(row.difference_ms) for row in [*rows, total]), default=0.0)
    cells = [
        (
            row.label,
            figures.milliseconds(row.before_ms, beside=times),
            figures.milliseconds(row.after_ms, beside=times),
            signed(row.difference_ms, beside=changes),
        )
        for row in [*rows, total]
    ]
    headings = ("ms per step", "A", "B", "B - A")
    room = _room(headings, cells, console.width)
    full = room >= _NARROWEST_BAR
    if not full:
        room = _room(("ms", "B - A"), [(label, change) for label, _, _, change in cells], console.width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings if full else ("ms", "B - A"):
        table.add_column(heading, justify="left" if heading.startswith("ms") else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    bars = bars_of([row.difference_ms for row in rows], total.difference_ms, min(room, _WIDEST_BAR), pens(console))
    for words, bar in zip(cells, bars, strict=True):
        shown = words if full else (words[0], words[3])
        style = "bold" if words[0] == "step" else ""
        table.add_row(*(Text(word, style=style) for word in shown), bar)
    return table


def bars_of(differences: Sequence[float], total: float, width: int, pen: Pens) -> list[Text]:
    """A bar for each difference and one for their total, on one axis from the lowest to the highest running sum.

    Worked example: +6, -2 and their total +4 on 12 cells: the running sums are 0, 6 and 4, so a cell is 0.5; the bars
    are cells 0-12, 8-12 and 0-8.
    """
    sums = [0.0]
    for difference in differences:
        sums.append(sums[-1] + difference)
    spans = [*pairwise(sums), (0.0, total)]
    low, high = min(*sums, total), max(*sums, total)
    reach = high - low if high > low else 1.0

    def cell(value: float) -> int:
        return round((value - low) / reach * width)

    return [_bar(cell(a), cell(b), width, b - a, pen) for a, b in spans]


def _bar(begin: int, end: int, width: int, difference: float, pen: Pens) -> Text:
    first, last = sorted((begin, end))
    if first == last:
        return Text(" " * min(first, width - 1) + pen.nothing, style="dim")
    glyph, style = (pen.longer, "red") if difference > 0 else (pen.shorter, "green")
    return Text(" " * first).append(glyph * (last - first), style=style)


def _room(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    columns = [max(len(word) for word in column) for column in zip(headings, *rows, strict=True)]
    return width - sum(columns) - _GAP * len(columns)
