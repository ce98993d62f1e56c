"""Steps over all ranks, as they are drawn: `step.json`, made from the traces, which a page cannot carry whole."""

from __future__ import annotations

from typing import Literal

import msgspec

from gpudiag.model.quantities import Count, Nanoseconds, Number, Ordinal

STEP_SCHEMA = "gpudiag/step/1"
STEP_FILE = "step.json"

TrackKind = Literal["buckets", "device", "host"]

#: Name of what is idle in a `buckets` track before a step's first op, while the host recorded nothing.
UNMARKED_INPUT = "unmarked-input"
#: What a span's colour stands for in a `device` track; in a `buckets` track it is an index into `BUCKETS`, in a `host`
#: track 0 is an operator, 1 a range, 2 a call of the runtime.
DEVICE_COLOURS = ("compute", "communication", "copy")


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one row, as columns of equal length, by start.

    Attributes:
        kind: what the row shows.
        label: `stream 7`, `host`, ...
        start, length: nanoseconds; the start counts from `StepView`'s begin and may be negative where a span began
            before.
        name: indices into `StepView.names`.
        colour: see above.
        depth: 0 for what nothing encloses.
        left_out: spans too short to be kept.
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
    """One rank's rows, and where its window of the step begins and ends."""

    rank: Ordinal
    device: str
    begin: Nanoseconds
    end: Nanoseconds
    tracks: tuple[Track, ...]


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """A rank waits for another, in nanoseconds as `Track` counts them: until that one arrives at their collective."""

    rank: Ordinal
    on_rank: Ordinal
    start: Nanoseconds
    length: Nanoseconds


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step on every lane, on one clock whose zero is the earliest begin.

    Attributes:
        step: its number, as the loop's marks carry it.
        length: nanoseconds from the earliest begin to the latest end.
        names: of spans; of the steps in `others` too, whose own are empty.
        ranks: in order of rank; of many, those that the report's table shows.
        ranks_left_out: how many are not there.
        waits: the longest of them.
        others: more steps of the same job to choose from, in their order.
    """

    schema: str = STEP_SCHEMA
    step: Number
    length: Nanoseconds
    names: tuple[str, ...]
    ranks: tuple[RankView, ...]
    ranks_left_out: Count = 0
    waits: tuple[WaitView, ...] = ()
    others: tuple[StepView, ...] = ()
