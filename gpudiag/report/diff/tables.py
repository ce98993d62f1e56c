"""Make tables of the difference between two runs: changes of buckets, and the parts of buckets that changed most.

A bucket is a part of the step time, such as compute or copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import fsum

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpudiag.model.diff import BucketChange, Diff, PartChange, StepChange
from gpudiag.report import figures
from gpudiag.report.console import GAP, plain_table
from gpudiag.report.diff.words import part_label, signed
from gpudiag.report.palette import LABELS

#: Smallest time or change that is shown, in ms per step.
SEEN_MS = 0.005
#: Smallest width of a bar in the table of buckets. If there is less room, the table omits the columns A and B.
_NARROWEST_BAR = 12
_WIDEST_BAR = 60  # characters
MOST_PARTS = 10
#: Smallest terminal width with which the table of parts has the columns A and B.
_ROOM_FOR_TIMES = 70
#: Smallest shown difference in calls per step. Smaller differences depend on where the recordings begin and end.
_SAME_CALLS = 0.5


class ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a bucket, of the step, or of `part` (a kernel, collective or copy), in ms per step."""

    label: str
    before_ms: float = 0.0
    after_ms: float = 0.0
    difference_ms: float
    part: PartChange | None = None


def _row(label: str, change: BucketChange | PartChange | StepChange, part: PartChange | None = None) -> ChangeRow:
    return ChangeRow(
        label=label, before_ms=change.before_ms, after_ms=change.after_ms, difference_ms=change.difference_ms, part=part
    )


def _remainder(label: str, whole: ChangeRow | BucketChange, rows: Sequence[ChangeRow | PartChange]) -> ChangeRow:
    """Return the row of `whole` minus `rows`."""
    before, after, difference = (
        fsum([getattr(whole, name), *(-getattr(row, name) for row in rows)])
        for name in ("before_ms", "after_ms", "difference_ms")
    )
    return ChangeRow(label=label, before_ms=before, after_ms=after, difference_ms=difference)


class BarGlyphs(msgspec.Struct, frozen=True, kw_only=True):
    """Characters of bars; increase and decrease differ by character, not only by color."""

    longer: str
    shorter: str
    nothing: str


def _glyphs(console: Console) -> BarGlyphs:
    if console.encoding.lower().startswith("utf"):
        return BarGlyphs(longer="█", shorter="░", nothing="│")
    return BarGlyphs(longer="#", shorter="=", nothing="|")


def waterfall(diff: Diff, console: Console) -> Table:
    """Return a line with a bar for each bucket with visible time and for unattributed time, and a line for the step.

    A narrow console omits the columns A and B, so that there is room for bars.
    """
    rows = [
        _row(LABELS[change.bucket], change)
        for change in diff.buckets
        if max(abs(change.before_ms), abs(change.after_ms)) >= SEEN_MS
    ]
    if abs(diff.unattributed_ms) >= SEEN_MS:
        rows.append(ChangeRow(label="unattributed", difference_ms=diff.unattributed_ms))
    total = _row("step", diff.step("profiled"))
    longest_ms = max(total.before_ms, total.after_ms)
    largest_ms = max(abs(row.difference_ms) for row in [*rows, total])
    cells: list[tuple[str, ...]] = [
        (
            row.label,
            figures.milliseconds(row.before_ms, beside=longest_ms),
            figures.milliseconds(row.after_ms, beside=longest_ms),
            signed(row.difference_ms, beside=largest_ms),
        )
        for row in [*rows, total]
    ]
    headings: tuple[str, ...] = ("ms per step", "A", "B", "B - A")
    room = _room(headings, cells, console.width)
    if room < _NARROWEST_BAR:
        headings, cells = ("ms", "B - A"), [(row[0], row[-1]) for row in cells]
        room = _room(headings, cells, console.width)
    table = plain_table((*headings, ""), left=(headings[0], ""), no_wrap=True)
    bars = bars_of([row.difference_ms for row in rows], total.difference_ms, min(room, _WIDEST_BAR), _glyphs(console))
    for words, bar in zip(cells, bars, strict=True):
        table.add_row(*(Text(word, style="bold" if words[0] == "step" else "") for word in words), bar)
    return table


def bars_of(differences: Sequence[float], total: float, width: int, glyphs: BarGlyphs) -> list[Text]:
    """Return a bar for each difference and a bar for the total, on an axis from the lowest to the highest running sum.

    Worked example. The differences are +6 and -2, their total is +4, and there are `width` = 12 character cells. The
    running sums are 0, 6 and 4, so that a cell is 0.5. The bars are the cells 0-12, 8-12 and 0-8.
    """
    sums = list(accumulate(differences, initial=0.0))
    # The total may exceed the sums, because it includes changes that have no bar.
    low, high = min(*sums, total), max(*sums, total)
    reach = high - low if high > low else 1.0  # any value: all bars are empty

    def cell(value: float) -> int:
        return round((value - low) / reach * width)

    return [_bar(cell(a), cell(b), width, b - a, glyphs) for a, b in (*pairwise(sums), (0.0, total))]


def _bar(begin: int, end: int, width: int, difference: float, glyphs: BarGlyphs) -> Text:
    """Return the bar between two cells, in any order; its color and character show the sign of `difference`."""
    first, last = sorted((begin, end))
    if first == last:
        # A bar that starts at the end of the axis would be outside of it.
        return Text(" " * min(first, width - 1) + glyphs.nothing, style="dim")
    glyph, style = (glyphs.longer, "red") if difference > 0 else (glyphs.shorter, "green")
    return Text(" " * first).append(glyph * (last - first), style=style)


def _room(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """Return the number of characters that remain beside these columns in a line of `width` characters."""
    return width - sum(GAP + max(map(len, column)) for column in zip(headings, *rows, strict=True))


def parts_table(diff: Diff, width: int) -> Table:
    """Return the largest changes over all buckets, the remainder, and their sum, which is the change of the step.

    Columns A and B need a terminal of `_ROOM_FOR_TIMES` characters. Names have the process group if there are several.
    """
    step = _row("step", diff.step("profiled"))
    by_size = sorted(_part_rows(diff), key=lambda pair: -abs(pair[1].difference_ms))
    largest = [(bucket, row) for bucket, row in by_size if abs(row.difference_ms) >= SEEN_MS][:MOST_PARTS]
    remainder = _remainder("all others" if largest else "everything", step, [row for _, row in largest])
    rows = [*largest, ("", remainder), ("", step)]
    with_times = width >= _ROOM_FOR_TIMES
    headings = ("B - A", *(("A", "B") if with_times else ()), "bucket")
    cells = _part_cells(rows, with_times=with_times)
    room = max(_room(headings, cells, width), 1)
    several_groups = len({part.group for bucket in diff.buckets for part in bucket.parts if part.group}) > 1
    table = plain_table((*headings, "what"), left=("bucket", "what"), no_wrap=True)
    for (_, row), words in zip(rows, cells, strict=True):
        style = "bold" if row is step else "dim" if row is remainder else ""
        name = _part_name(row, room, calls=with_times, groups=several_groups)
        table.add_row(*(Text(word, style=style) for word in (*words, name)))
    return table


def _part_cells(rows: Sequence[tuple[str, ChangeRow]], *, with_times: bool) -> list[tuple[str, ...]]:
    """Return the cells of each row except its name: change, times of A and B if `with_times`, bucket."""
    step = rows[-1][1]  # `rows` has (label of the bucket, row)
    largest = max(abs(row.difference_ms) for _, row in rows)
    longest = max(step.before_ms, step.after_ms)
    cells = []
    for bucket, row in rows:
        times = [figures.milliseconds(ms, beside=longest) for ms in (row.before_ms, row.after_ms)]
        cells.append((signed(row.difference_ms, beside=largest), *(times if with_times else ()), bucket))
    return cells


def _part_name(row: ChangeRow, room: int, *, calls: bool, groups: bool) -> str:
    """Return the part's name in `room` characters, with changed calls per step if `calls`, its group if `groups`."""
    if row.part is None:
        return row.label
    old, new = row.part.before_per_step, row.part.after_per_step
    counts = f" ({figures.count(old)} → {figures.count(new)} calls)"
    changed = counts if calls and abs(new - old) >= _SAME_CALLS else ""
    return part_label(row.part, max(room - len(changed), 1), groups=groups) + changed


def _part_rows(diff: Diff) -> list[tuple[str, ChangeRow]]:
    """Return (label of the bucket, row) of every part, and of the remainder of each bucket."""
    rows = [("", ChangeRow(label="unattributed", difference_ms=diff.unattributed_ms))]
    for bucket in diff.buckets:
        remainder = _remainder("the rest" if bucket.parts else "", bucket, bucket.parts)
        # The stored remainder makes the sum exact; the subtraction above adds rounding errors.
        remainder = msgspec.structs.replace(remainder, difference_ms=bucket.rest_ms)
        rows += [(LABELS[bucket.bucket], row) for row in (*(_row("", part, part) for part in bucket.parts), remainder)]
    return rows
