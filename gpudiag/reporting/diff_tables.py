"""What made a difference: the kernels, collectives and copies with the largest, and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from gpudiag.reporting import figures
from gpudiag.reporting.diff_words import part_label, signed
from gpudiag.reporting.palette import LABELS

if TYPE_CHECKING:
    from gpudiag.model.diff import Diff, PartChange

#: As many as a person takes in at a glance.
MOST_PARTS = 10
#: What changed by less is left to "others".
_SEEN_MS = 0.005
_ROOM_FOR_TIMES = 70
_GAP = 2
#: Calls per step that differ by less are the same but for where the capture was cut.
_SAME_CALLS = 0.5


@dataclass(frozen=True, slots=True)
class _Line:
    difference_ms: float
    before_ms: float
    after_ms: float
    bucket: str
    words: str = ""
    part: PartChange | None = None


def parts_table(diff: Diff, width: int) -> Table:
    """The largest differences over all buckets, what is left, and their sum: the difference of the step."""
    step = diff.step("profiled")
    lines = sorted(_lines(diff), key=lambda line: -abs(line.difference_ms))
    shown = [line for line in lines if abs(line.difference_ms) >= _SEEN_MS][:MOST_PARTS]
    left = _Line(
        difference_ms=fsum([step.difference_ms, *(-line.difference_ms for line in shown)]),
        before_ms=fsum([step.before_ms, *(-line.before_ms for line in shown)]),
        after_ms=fsum([step.after_ms, *(-line.after_ms for line in shown)]),
        bucket="",
        words="all others" if shown else "everything",
    )
    rows = [*shown, left, _Line(step.difference_ms, step.before_ms, step.after_ms, "", "step")]
    full = width >= _ROOM_FOR_TIMES
    largest = max(abs(row.difference_ms) for row in rows)
    longest = max(step.before_ms, step.after_ms)
    headings = ("B - A", *(("A", "B") if full else ()), "bucket")
    cells = [
        (
            signed(row.difference_ms, beside=largest),
            *(figures.milliseconds(ms, beside=longest) for ms in ((row.before_ms, row.after_ms) if full else ())),
            row.bucket,
        )
        for row in rows
    ]
    taken = sum(max(len(word) for word in column) + _GAP for column in zip(headings, *cells, strict=True))
    groups = len({part.group for bucket in diff.buckets for part in bucket.parts if part.group}) > 1
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "bucket" else "right", no_wrap=True)
    table.add_column("what", no_wrap=True)
    for row, words in zip(rows, cells, strict=True):
        style = "bold" if row.words == "step" else "dim" if row is left else ""
        what = _what(row, max(width - taken, 1), calls=full, groups=groups)
        table.add_row(*(Text(word, style=style) for word in (*words, what)))
    return table


def _what(line: _Line, room: int, *, calls: bool, groups: bool) -> str:
    """The part's name, and where it fits and they changed, its calls per step."""
    if line.part is None:
        return line.words
    old, new = line.part.before_per_step, line.part.after_per_step
    changed = f" ({_count(old)} → {_count(new)} calls)" if calls and abs(new - old) >= _SAME_CALLS else ""
    return part_label(line.part, max(room - len(changed), 1), groups=groups) + changed


def _lines(diff: Diff) -> list[_Line]:
    lines = [_Line(diff.unattributed_ms, 0.0, 0.0, "", "unattributed")]
    for bucket in diff.buckets:
        label = LABELS[bucket.bucket]
        lines += [_Line(part.difference_ms, part.before_ms, part.after_ms, label, part=part) for part in bucket.parts]
        before = fsum([bucket.before_ms, *(-part.before_ms for part in bucket.parts)])
        after = fsum([bucket.after_ms, *(-part.after_ms for part in bucket.parts)])
        lines.append(_Line(bucket.rest_ms, before, after, label, "the rest" if bucket.parts else ""))
    return lines


def _count(per_step: float) -> str:
    return figures.thousands(per_step, 1).removesuffix(".0")
