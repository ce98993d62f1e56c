"""Define the export model: tracks of events on one clock, independent of the format."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray


class TrackKind(Enum):
    """Source of a track's events."""

    #: gpudiag's results: steps, buckets, waits.
    GPUDIAG = "gpudiag"
    #: A device's stream.
    STREAM = "stream"
    #: Host annotations that the profiler recorded on the device, beside the work of a stream.
    SHADOWS = "shadows"
    #: A host thread.
    THREAD = "thread"


class ExportTrack(msgspec.Struct, frozen=True, kw_only=True):
    """Events of a thread, a stream or gpudiag, as columns of equal length n.

    Events are sorted by start. Among events with the same start, the longest is first.

    Attributes:
        title: label in the viewer.
        ident: number of the thread or stream in the trace; position of a gpudiag track.
        start, end: int64[n], ns since the export model's origin.
        name: int32[n], index into `names`, which may have unused entries.
        event_kind: uint8[n], `EventKind`; None for gpudiag's tracks.
        correlation: int64[n] as in `EventTable`; None for gpudiag's tracks.
        size_bytes: int64[n] as in `EventTable`; None for gpudiag's tracks.
        step: int64[n], step number of a step mark or window, -1 for other events; None if there are no steps.
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

    def rows(self) -> Iterator[tuple[int, int, str]]:
        """Yield (start, end, name) of each event."""
        for start, end, name in zip(self.start.tolist(), self.end.tolist(), self.name.tolist(), strict=True):
            yield start, end, self.names[name]


class TrackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A device with its streams, or the threads of one process.

    Attributes:
        title: `rank 2 · cuda:0 · NVIDIA H200` or `rank 2 · host`.
        process: number of the recording process; correlation ids are unique within it.
        device: ordinal of the device in its process; None for a host.
        model: the device's model, or "".
        tracks: gpudiag's tracks first.
    """

    title: str
    process: int
    ranks: tuple[int, ...]
    device: int | None
    model: str
    tracks: tuple[ExportTrack, ...]


class ExportModel(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of tracks: devices by rank, then hosts. `origin_ns` is the Unix time of the clock's zero; 0 if unknown."""

    framework: str
    origin_ns: int
    groups: tuple[TrackGroup, ...]

    def events(self) -> int:
        """Return the number of events, including gpudiag's tracks."""
        return sum(len(track) for group in self.groups for track in group.tracks)


def rows_apart(track: ExportTrack) -> list[NDArray[np.intp]]:
    """Put each event into the first row where it is nested in or disjoint from other events; return indices by row.

    A format that writes begins and ends cannot express other overlaps within a row:

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
    """Return the first row in which an event fits; the number of rows if it fits in none.

    `open_until` has the ends of the open events of each row; ends before `start` are removed.
    """
    for row, ends in enumerate(open_until):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            return row
    return len(open_until)
