"""From A to B as a waterfall: each bucket's bar begins where the one above it ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.diff import BucketChange, Diff, PartChange, StepChange
from gpudiag.report import figures
from gpudiag.report.diff.words import signed
from gpudiag.report.layout import GAP, plain_table
from gpudiag.report.palette import LABELS

#: A bucket below this in both runs would be a row of zeros.
_SEEN_MS = 0.005
#: Narrower bars show nothing: the columns of A and B make room for them.
_NARROWEST_BAR = 12
_WIDEST_BAR = 60


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a table of differences, ms per step; of `part` where it is one kernel's or collective's."""

    label: str
    before_ms: float = 0.0
    after_ms: float = 0.0
    difference_ms: float
    part: PartChange | None = None


def row_of(label: str, change: BucketChange | PartChange | StepChange, part: PartChange | None = None) -> Row:
    """A line of something that changed."""
    return Row(
        label=label,
        before_ms=change.before_ms,
        after_ms=change.after_ms,
        difference_ms=change.difference_ms,
        part=part,
    )


class Pens(msgspec.Struct, frozen=True, kw_only=True):
    """What a bar is drawn with: longer and shorter differ by character, not only by colour."""

    longer: str
    shorter: str
    nothing: str


def pens(console: Console) -> Pens:
    """Blocks, or what ASCII has."""
    if console.encoding.lower().startswith("utf"):
        return Pens(longer="█", shorter="░", nothing="│")
    return Pens(longer="#", shorter="=", nothing="|")


def waterfall(diff: Diff, console: Console) -> Table:
    """A line per bucket that either run has, and one for the step, which they sum to."""
    rows = [
        row_of(LABELS[change.bucket], change)
        for change in diff.buckets
        if max(abs(change.before_ms), abs(change.after_ms)) >= _SEEN_MS
    ]
    if abs(diff.unattributed_ms) >= _SEEN_MS:
        rows.append(Row(label="unattributed", difference_ms=diff.unattributed_ms))
    total = row_of("step", diff.step("profiled"))
    times = max(total.before_ms, total.after_ms)
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
    headings: tuple[str, ...] = ("ms per step", "A", "B", "B - A")
    shown: list[tuple[str, ...]] = [*cells]
    room = _room(headings, shown, console.width)
    if room < _NARROWEST_BAR:
        headings, shown = ("ms", "B - A"), [(label, change) for label, _, _, change in cells]
        room = _room(headings, shown, console.width)
    table = plain_table((*headings, ""), left=(headings[0], ""), no_wrap=True)
    bars = bars_of([row.difference_ms for row in rows], total.difference_ms, min(room, _WIDEST_BAR), pens(console))
    for words, bar in zip(shown, bars, strict=True):
        table.add_row(*(Text(word, style="bold" if words[0] == "step" else "") for word in words), bar)
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
    return width - sum(columns) - GAP * len(columns)
