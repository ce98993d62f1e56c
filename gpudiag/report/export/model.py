"""What is to be shown of a job: tracks of events on one clock, whatever format they are then written in."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray


class TrackKind(Enum):
    """Where a track's events come from."""

    GPUDIAG = "gpudiag"
    """gpudiag's findings: steps, buckets, waits."""
    STREAM = "stream"
    """A device's stream."""
    SHADOWS = "shadows"
    """Host annotations as the device saw them; they lie over the work of a stream."""
    THREAD = "thread"
    """A host thread."""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one thread, stream, or of gpudiag's as columns of equal length n, by start (ties: the longer first).

    Attributes:
        kind: where they come from.
        title: what a person reads beside it.
        ident: the thread's or stream's number in the trace; of gpudiag's tracks their place.
        start, end: int64[n], ns since the export model's origin.
        name: int32[n], index into `names`.
        names: distinct names, possibly more than are used here.
        event_kind: uint8[n], `EventKind`; None for gpudiag's tracks.
        correlation: int64[n] as in `EventTable`; None for gpudiag's tracks.
        size_bytes: int64[n] as in `EventTable`; None for gpudiag's tracks.
        step: int64[n], the step number of a step mark or window, -1 for all else; None where there are none.
    """

    kind: TrackKind
    title: str
    ident: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    name: NDArray[np.int32]
    names: tuple[str, ...]
    event_kind: NDArray[np.uint8] | None = None
    correlation: NDArray[np.int64] | None = None
    size_bytes: NDArray[np.int64] | None = None
    step: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def total_ns(self) -> int:
        """Sum of the durations."""
        return int((self.end - self.start).sum())

    def rows(self) -> Iterator[tuple[int, int, str]]:
        """(start, end, name) of each event."""
        for start, end, name in zip(self.start.tolist(), self.end.tolist(), self.name.tolist(), strict=True):
            yield start, end, self.names[name]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs together on the screen: one device with its streams, or the threads of one process.

    Attributes:
        title: `rank 2 · cuda:0 · NVIDIA H200` or `rank 2 · host`.
        process: which process recorded it, from 0; correlation ids are of one process.
        ranks: the ranks concerned.
        device: ordinal of the device in its process; None for a host.
        model: the device's model, or "".
        tracks: gpudiag's tracks first.
    """

    title: str
    process: int
    ranks: tuple[int, ...]
    device: int | None
    model: str
    tracks: tuple[Track, ...]


class ExportModel(msgspec.Struct, frozen=True, kw_only=True):
    """Everything to be shown.

    Attributes:
        framework: `pytorch` or `tensorflow`.
        origin_ns: absolute time (Unix, ns) of the clock's zero; 0 where unknown.
        groups: devices in order of rank, then hosts.
    """

    framework: str
    origin_ns: int
    groups: tuple[Group, ...]

    def events(self) -> int:
        """How many events there are, gpudiag's tracks included."""
        return sum(len(track) for group in self.groups for track in group.tracks)


def rows_apart(track: Track) -> list[NDArray[np.intp]]:
    """The events of a track in as few rows as it takes for those of one row to be nested or disjoint.

    Formats that write begins and ends can say nothing else:

        |---- a ----|                    row 0: a, c
             |---- b ----|               row 1: b
          |- c -|
    """
    rows: list[list[int]] = []
    open_until: list[list[int]] = []
    for index, (start, end) in enumerate(zip(track.start.tolist(), track.end.tolist(), strict=True)):
        row = _first_with_room(open_until, start, end)
        if row == len(rows):
            rows.append([])
            open_until.append([])
        rows[row].append(index)
        open_until[row].append(end)
    return [np.array(row, np.intp) for row in rows]


def _first_with_room(open_until: list[list[int]], start: int, end: int) -> int:
    """The first row where an event fits, by the ends of what is open in each; one more than there are for none."""
    for row, ends in enumerate(open_until):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            return row
    return len(open_until)
