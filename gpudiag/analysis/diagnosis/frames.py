"""Find the user's functions that made a call, if the profiler recorded stacks (`with_stack=True`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.diagnosis.calibration import MOST
from gpudiag.model.event import EventTable, Role

#: Calls of the same name nest at most this deep around another's.
_NESTED = 64


def user_frames(events: EventTable, rows: Iterable[int]) -> Counter[str]:
    """Count how often each of the user's functions is the innermost around these host events.

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
        of_thread = by_thread[thread]
        upto = int(np.searchsorted(events.start_ns[of_thread], events.start_ns[row], side="right"))
        around = of_thread[max(0, upto - _NESTED) : upto]
        around = around[events.end_ns[around] >= events.end_ns[row]]
        if len(around):
            counted[events.name_of(int(around[-1]))] += 1
    return counted


def time_in(events: EventTable, thread: int, begin_ns: int, end_ns: int) -> dict[str, int]:
    """Return how long, in ns, each of the user's functions was the innermost one on a thread within a span.

    Args:
        events: one process's events.
        thread: the thread.
        begin_ns, end_ns: the span, on the events' own clock.
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
        # A frame that ends after the one around it (a broken record) counts as far as that goes.
        stop = min(end, open_frames[-1][0]) if open_frames else end
        total[name] += stop - start
        if open_frames:
            total[open_frames[-1][1]] -= stop - start
        open_frames.append((stop, name))
    return dict(total)


def innermost(events: EventTable, rows: NDArray[np.intp], begin_ns: int, end_ns: int) -> str:
    """Return the innermost of these functions or ranges that covers most of a span on the trace's clock, or ""."""
    start, end = events.start_ns[rows], events.end_ns[rows]
    inside = np.minimum(end, end_ns) - np.maximum(start, begin_ns)
    most = np.flatnonzero(inside > MOST * (end_ns - begin_ns))
    if len(most) == 0:
        return ""
    return events.name_of(int(rows[most[np.argmin((end - start)[most])]]))
