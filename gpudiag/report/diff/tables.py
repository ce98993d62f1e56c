"""What made a difference: the kernels, collectives and copies with the largest, and their sum."""

from __future__ import annotations

from math import fsum

from rich.table import Table
from rich.text import Text

from gpudiag.model.diff import Diff
from gpudiag.report import figures
from gpudiag.report.diff.bars import Row, row_of
from gpudiag.report.diff.words import part_label, signed
from gpudiag.report.layout import GAP, plain_table
from gpudiag.report.palette import LABELS

#: As many as a person takes in at a glance.
MOST_PARTS = 10
#: What changed by less is left to "others".
_SEEN_MS = 0.005
_ROOM_FOR_TIMES = 70
#: Calls per step that differ by less are the same but for where the capture was cut.
_SAME_CALLS = 0.5


def parts_table(diff: Diff, width: int) -> Table:
    """The largest differences over all buckets, what is left, and their sum: the difference of the step."""
    step = row_of("step", diff.step("profiled"))
    by_size = sorted(_rows(diff), key=lambda pair: -abs(pair[1].difference_ms))
    shown = [(bucket, row) for bucket, row in by_size if abs(row.difference_ms) >= _SEEN_MS][:MOST_PARTS]
    left = Row(
        label="all others" if shown else "everything",
        before_ms=fsum([step.before_ms, *(-row.before_ms for _, row in shown)]),
        after_ms=fsum([step.after_ms, *(-row.after_ms for _, row in shown)]),
        difference_ms=fsum([step.difference_ms, *(-row.difference_ms for _, row in shown)]),
    )
    rows = [*shown, ("", left), ("", step)]
    full = width >= _ROOM_FOR_TIMES
    largest = max(abs(row.difference_ms) for _, row in rows)
    longest = max(step.before_ms, step.after_ms)
    headings = ("B - A", *(("A", "B") if full else ()), "bucket")
    cells = [
        (
            signed(row.difference_ms, beside=largest),
            *(figures.milliseconds(ms, beside=longest) for ms in ((row.before_ms, row.after_ms) if full else ())),
            bucket,
        )
        for bucket, row in rows
    ]
    taken = sum(max(len(word) for word in column) + GAP for column in zip(headings, *cells, strict=True))
    groups = len({part.group for bucket in diff.buckets for part in bucket.parts if part.group}) > 1
    table = plain_table((*headings, "what"), left=("bucket", "what"), no_wrap=True)
    for (_, row), words in zip(rows, cells, strict=True):
        style = "bold" if row is step else "dim" if row is left else ""
        what = _what(row, max(width - taken, 1), calls=full, groups=groups)
        table.add_row(*(Text(word, style=style) for word in (*words, what)))
    return table


def _what(row: Row, room: int, *, calls: bool, groups: bool) -> str:
    """The part's name, and where it fits and they changed, its calls per step."""
    if row.part is None:
        return row.label
    old, new = row.part.before_per_step, row.part.after_per_step
    counts = f" ({figures.count(old)} → {figures.count(new)} calls)"
    changed = counts if calls and abs(new - old) >= _SAME_CALLS else ""
    return part_label(row.part, max(room - len(changed), 1), groups=groups) + changed


def _rows(diff: Diff) -> list[tuple[str, Row]]:
    """Every part under its bucket's label, and what of each bucket has none."""
    rows = [("", Row(label="unattributed", difference_ms=diff.unattributed_ms))]
    for bucket in diff.buckets:
        rest = Row(
            label="the rest" if bucket.parts else "",
            before_ms=fsum([bucket.before_ms, *(-part.before_ms for part in bucket.parts)]),
            after_ms=fsum([bucket.after_ms, *(-part.after_ms for part in bucket.parts)]),
            difference_ms=bucket.rest_ms,
        )
        rows += [(LABELS[bucket.bucket], row) for row in (*(row_of("", part, part) for part in bucket.parts), rest)]
    return rows
