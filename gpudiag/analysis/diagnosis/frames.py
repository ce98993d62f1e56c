"""Find the user's functions around host events, if the profiler recorded stacks (`with_stack=True`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.model.event import EventTable, Role

#: Deepest nesting of the user's functions around an event.
_DEEPEST_NESTING = 64


def user_frames(events: EventTable, rows: Iterable[int]) -> Counter[str]:
    """Count the host events by the innermost of the user's functions around each.

    Args:
        events: one process's events.
        rows: rows of host events.
    """
    counted: Counter[str] = Counter()
    frames = np.flatnonzero(events.role == Role.USER_FUNCTION)
    if len(frames) == 0:
        return counted
    by_thread: dict[int, NDArray[np.intp]] = {}
    for row in rows:
        thread = int(events.thread[row])
        if thread not in by_thread:
            by_thread[thread] = frames[events.thread[frames] == thread]
        on_thread = by_thread[thread]
        upto = int(np.searchsorted(events.start_ns[on_thread], events.start_ns[row], side="right"))
        around = on_thread[max(0, upto - _DEEPEST_NESTING) : upto]
        around = around[events.end_ns[around] >= events.end_ns[row]]
        if len(around):
            counted[events.name_of(int(around[-1]))] += 1
    return counted


def time_in(events: EventTable, thread: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return the ns within a span during which each of the user's functions was the innermost on a thread.

    Args:
        events: one process's events.
        thread: the thread.
        begin_ns, end_ns: the span, on the events' clock.
    """
    frames = np.flatnonzero((events.role == Role.USER_FUNCTION) & (events.thread == thread))
    frames = frames[(events.end_ns[frames] > begin_ns) & (events.start_ns[frames] < end_ns)]
    total: dict[str, int] = defaultdict(int)
    open_frames: list[tuple[int, str]] = []
    starts = np.maximum(events.start_ns[frames], begin_ns).tolist()
    ends = np.minimum(events.end_ns[frames], end_ns).tolist()
    for row, start, end in zip(frames.tolist(), starts, ends, strict=True):
        while open_frames and open_frames[-1][0] <= start:
            open_frames.pop()
        name = events.name_of(row)
        # In a broken record a frame may end after its enclosing frame; cut it there.
        stop = min(end, open_frames[-1][0]) if open_frames else end
        total[name] += stop - start
        if open_frames:
            total[open_frames[-1][1]] -= stop - start
        open_frames.append((stop, name))
    return dict(total)


def innermost(events: EventTable, rows: NDArray[np.intp], begin_ns: int, end_ns: int) -> str:
    """Return the innermost of these functions or ranges that covers most of a span on the trace's clock, or ""."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    overlap = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
    covering = np.flatnonzero(overlap > MOST * (end_ns - begin_ns))
    if len(covering) == 0:
        return ""
    return events.name_of(int(rows[covering[np.argmin((end - start)[covering])]]))
