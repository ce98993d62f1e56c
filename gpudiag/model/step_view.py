"""Define the spans of single steps that reports draw (`step.json`), because whole traces are too large for a page."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Count, Nanoseconds, Number, Ordinal

STEP_SCHEMA = "gpudiag/step/1"
STEP_FILE = "step.json"

#: Kind of row; `buckets` are the parts of the step time (`analysis.BUCKETS`).
TrackKind = Literal["buckets", "device", "host", "lines"]

#: Name of idle time in a `buckets` row before a step's first op, while the host recorded nothing.
UNMARKED_INPUT = "unmarked-input"
#: Meaning of each colour of a span in a `device` row.
DEVICE_COLOURS = ("compute", "communication", "copy")


class StepTrack(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one row of the drawing, as columns of equal length, sorted by start.

    Attributes:
        label: heading of the row, such as `compute, stream 7` or `host`.
        start, length: nanoseconds; a start counts from the begin of the `StepView`, and is negative for earlier spans.
        name: indices into `StepView.names`.
        colour: in a `buckets` row an index into `BUCKETS`; in a `device` row an index into `DEVICE_COLOURS`; in a
            `host` row 0 for an operator, 1 for a range, 2 for a runtime call; in a `lines` row 0.
        depth: 0 for outermost spans.
        left_out: number of spans too short to be kept.
    """

    kind: TrackKind
    label: str
    start: tuple[Nanoseconds, ...]
    length: tuple[Nanoseconds, ...]
    name: tuple[Count, ...]
    colour: tuple[Count, ...]
    depth: tuple[Count, ...]
    left_out: Count = 0

    def __post_init__(self) -> None:
        """Refuse columns of unequal lengths."""
        if len({len(column) for column in (self.start, self.length, self.name, self.colour, self.depth)}) > 1:
            raise ValueError("columns of unequal lengths")


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's rows, and the begin and end of the step's window on that rank."""

    rank: Ordinal
    device: str
    begin: Nanoseconds
    end: Nanoseconds
    tracks: tuple[StepTrack, ...]


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of `rank` for the arrival of `on_rank` at a collective, in nanoseconds as in `StepTrack`."""

    rank: Ordinal
    on_rank: Ordinal
    start: Nanoseconds
    length: Nanoseconds


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step on every device track, on one clock whose zero is the earliest begin.

    Attributes:
        step: the step's number in the loop's marks.
        length: nanoseconds from the earliest begin to the latest end.
        names: names of spans of this view and of the views in `others`, whose `names` are empty.
        ranks: the ranks in order; if there are many ranks, only the first ranks and the ranks that findings name.
        ranks_left_out: number of ranks that are not in `ranks`.
        waits: the longest waits.
        others: other steps of the same job that users can choose, in order.
    """

    schema: str = STEP_SCHEMA
    step: Number
    length: Nanoseconds
    names: tuple[str, ...]
    ranks: tuple[RankView, ...]
    ranks_left_out: Count = 0
    waits: tuple[WaitView, ...] = ()
    others: tuple[StepView, ...] = ()
