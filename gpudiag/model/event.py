"""Events: what one process's profiler recorded, as columns.

A trace of one training step has tens of thousands of events, so they are kept as columns (NumPy arrays) and not as
objects. Rows are in order of their start.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gpudiag.record import Record

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from numpy.typing import NDArray

NO_CORRELATION = -1
NO_SIZE = -1
HOST = -1


class _Matches(dict[str, bool]):
    """Which names match a pattern, as far as they were asked for: the traces of a job have most names in common."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        super().__init__()
        self._pattern = pattern

    def __missing__(self, name: str) -> bool:
        self[name] = found = self._pattern.match(name) is not None
        return found


_matches = cache(_Matches)


def names_matching(names: Sequence[str], pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """bool[n]: which of n names the pattern matches, from their beginning."""
    matches = _matches(pattern)
    return np.fromiter([matches[name] for name in names], np.bool_, len(names))


class EventKind(IntEnum):
    """What an event is, whatever its framework or year called it."""

    OPERATOR = 0
    """A framework operator on a host thread (`cpu_op`; 2021: `Operator`)."""
    ANNOTATION = 1
    """A range that someone named, on a host thread (`user_annotation`): steps, DDP, `gpudiag.*`."""
    RUNTIME = 2
    """A CUDA runtime or driver call on a host thread: launches, copies, synchronizations."""
    KERNEL = 3
    """A kernel on a device stream, communication kernels included."""
    COPY = 4
    """A memory copy on a device stream."""
    MEMSET = 5
    """A memory set on a device stream."""
    DEVICE_ANNOTATION = 6
    """The device-side shadow of a host annotation (`gpu_user_annotation`)."""
    OVERHEAD = 7
    """The profiler's own doing ("Command Buffer Full"); neither compute nor launch."""
    DEVICE_SYNC = 8
    """A synchronization as the device saw it (`cuda_sync`)."""
    PYTHON = 9
    """A Python function call, recorded when stacks were asked for."""


DEVICE_WORK = (EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET)


class EventTable(Record, frozen=True, kw_only=True):
    """Events as columns of equal length n, sorted by `start_ns` (ties: the longer first, so that parents precede).

    Attributes:
        kind: uint8[n], an `EventKind`.
        name: int32[n], index into `names`.
        start_ns: int64[n], on the trace's own clock, nanoseconds since `Trace.origin_ns`.
        end_ns: int64[n], never before the start.
        thread: int64[n], host thread id; for device work the stream.
        device: int16[n], device ordinal; `HOST` for host events.
        correlation: int64[n], joins a runtime call to the device work that it launched; `NO_CORRELATION` for none.
        size_bytes: int64[n], bytes of a copy or memset; `NO_SIZE` where unknown.
        names: the distinct names, by index.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int16]
    correlation: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        lengths = {
            len(column)
            for column in (
                self.kind,
                self.name,
                self.start_ns,
                self.end_ns,
                self.thread,
                self.device,
                self.correlation,
                self.size_bytes,
            )
        }
        if len(lengths) > 1:
            raise ValueError(f"event columns of different lengths: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.kind)

    def name_of(self, row: int) -> str:
        """The name of the event in this row."""
        return self.names[int(self.name[row])]

    def rows_of(self, *kinds: EventKind) -> NDArray[np.intp]:
        """Rows of the given kinds, in order of start."""
        wanted = np.zeros(256, np.bool_)
        wanted[list(kinds)] = True
        return np.flatnonzero(wanted[self.kind])


class CollectiveCall(Record, frozen=True, kw_only=True):
    """What the profiler said of one communication kernel or host-side collective, beyond its times.

    Attributes:
        row: row in the event table.
        operation: `all_reduce`, `all_gather`, `reduce_scatter`, `broadcast`, `reduce`, `all_to_all`, `send`, `recv`,
            `barrier`, or the framework's own word where none of these fits.
        group: name of the process group; "" where the trace does not say.
        group_ranks: global ranks in the group; empty where unknown.
        size_bytes: bytes given per rank in nccl-tests' sense, or None: sizes are there only when shapes were recorded.
        sequence: the group's own sequence number where recorded, else None.
        processor_share: the share of the device's multiprocessors that its kernel holds, a block each, in (0, 1]; None
            where the trace does not say.
    """

    row: int
    operation: str
    group: str = ""
    group_ranks: tuple[int, ...] = ()
    size_bytes: int | None = None
    sequence: int | None = None
    processor_share: float | None = None


class Trace(Record, frozen=True, kw_only=True):
    """Everything read from one trace file: one process, one rank, one or more devices.

    Attributes:
        source: the file as the user named it; text for messages, never opened again.
        framework: `pytorch` or `tensorflow`.
        events: the events.
        origin_ns: absolute time (Unix, ns) of the event clock's zero where known, else 0. Kept apart so that
            in-trace times stay small and exact.
        rank: global rank, or None where neither the trace nor its name says.
        world_size: number of ranks in the job, or None.
        host: host name where the trace or its file name says, else "".
        device_names: model name by device ordinal.
        collectives: details of the communication events, by row.
        dropped_events: how many events the profiler said it lost; 0 when it said nothing.
        notes: what the reader had to repair or leave out, one line each, for the validity section.
    """

    source: str
    framework: str
    events: EventTable
    origin_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    device_names: dict[int, str] = msgspec.field(default_factory=dict)
    collectives: tuple[CollectiveCall, ...] = ()
    dropped_events: int = 0
    notes: tuple[str, ...] = ()
