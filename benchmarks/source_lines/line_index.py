"""Find the line of the user's source in which host time passes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from source_lines.records import FindingSource, LineSpans

#: A line is named for a finding if it has at least this share of the finding's host time: with less, most of the time
#: is elsewhere, and the line would mislead.
LEAST_SHARE = 0.6

#: A line that holds this share of all recorded time, mostly in lines that it calls, only starts the loop (`main()`).
_STARTS_LOOP = 0.9

Nanoseconds = NDArray[np.int64]


class LineIndex:
    """Looks up the lines of one rank's training thread by time.

    Args:
        spans: what was recorded, in ns since the epoch.
        shift_ns: what to add to these times to reach those of the caller.
    """

    def __init__(self, spans: LineSpans, shift_ns: int = 0) -> None:
        self._spans = spans
        order = np.argsort(np.array(spans.begin_ns, np.int64), kind="stable")
        self._begin = np.array(spans.begin_ns, np.int64)[order] + shift_ns
        self._end = np.maximum.accumulate(np.array(spans.end_ns, np.int64)[order] + shift_ns)
        self._position = np.array(spans.position, np.int64)[order]
        self._starts_loop = self._find_starts()

    def time_by_position(self, begin: Nanoseconds, end: Nanoseconds) -> NDArray[np.float64]:
        """Return, for each position of the spans, how many ns of the intervals passed in that line itself.

        Args:
            begin, end: int64[n] each, begin <= end.
        """
        first = np.searchsorted(self._end, begin, side="right")
        behind = np.searchsorted(self._begin, end, side="left")
        counts = np.maximum(behind - first, 0)
        interval = np.repeat(np.arange(len(begin)), counts)
        offset = np.arange(len(interval)) - np.repeat(np.cumsum(counts) - counts, counts)
        span = first[interval] + offset
        inside = np.minimum(end[interval], self._end[span]) - np.maximum(begin[interval], self._begin[span])
        positions = len(self._spans.positions)
        weights = np.maximum(inside, 0).astype(np.float64)
        return np.bincount(self._position[span], weights=weights, minlength=positions).astype(np.float64)

    def source(self, begin: Nanoseconds, end: Nanoseconds) -> FindingSource | None:
        """Return the deepest line that holds at least `LEAST_SHARE` of the intervals' time; None if no line does.

        A library's line is returned only if no line of the user's holds as much.
        """
        whole = float((end - begin).sum())
        if whole <= 0 or not self._spans.positions:
            return None
        below = self._with_called(self.time_by_position(begin, end))
        enough = [
            position
            for position in range(len(below))
            if below[position] >= LEAST_SHARE * whole and not self._starts_loop[position]
        ]
        own = [position for position in enough if self._spans.own[position]]
        if not enough:
            return None
        # Of two lines with that share one calls the other, so that the last one is the deepest.
        position = (own or enough)[-1]
        file, line, function, text = self._spans.positions[position]
        loop = self._loop_line(position)
        return FindingSource(
            file=file,
            line=line,
            function=function,
            text=text,
            called_from="" if loop == position else "{}:{}".format(*self._spans.positions[loop]),
            share_percent=100 * float(below[position]) / whole,
        )

    def _with_called(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the time of each line together with the lines that it calls, from the time in each line itself."""
        below = own.copy()
        for position in range(len(below) - 1, -1, -1):  # callers come before what they call
            if self._spans.parents[position] >= 0:
                below[self._spans.parents[position]] += below[position]
        return below

    def _find_starts(self) -> NDArray[np.bool_]:
        length = (self._end - self._begin).astype(np.float64)
        own = np.bincount(self._position, weights=length, minlength=len(self._spans.positions)).astype(np.float64)
        below = self._with_called(own)
        starts: NDArray[np.bool_] = (below >= _STARTS_LOOP * own.sum()) & (own < 0.5 * below)
        return starts

    def _loop_line(self, position: int) -> int:
        """Return the line of the loop that leads to a position: the deepest caller in the function that loops."""
        above = [position]
        while self._spans.parents[above[-1]] >= 0:
            above.append(self._spans.parents[above[-1]])
        own = [caller for caller in above if self._spans.own[caller]]
        # The outermost own lines only start the loop (`main()`, `train()`): the one above the named line leads to it.
        return own[1] if len(own) > 1 else position
