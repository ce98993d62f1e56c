"""Convert the lines of a process on the trace's clock to nested spans for drawing."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpudiag.analysis.lines.choose import is_users, location, loop_depth
from gpudiag.analysis.lines.on_trace import LinesOnTrace
from gpudiag.analysis.lines.times import ProcessTimes

Columns = NDArray[np.int64]


class LineSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of the user's lines within the training loop, sorted by start; callers come before their callees.

    Attributes:
        start, end: int64[n], ns, on the clock of the step marks.
        label: int64[n], index into `labels`.
        depth: int64[n], number of the user's lines around each span.
        labels: `SourceLocation.words` of the lines.
    """

    start: Columns
    end: Columns
    label: Columns
    depth: Columns
    labels: tuple[str, ...]


def line_spans(process: ProcessTimes, lines: LinesOnTrace) -> LineSpans:
    """Return one span for each uninterrupted time in a line and its callees."""
    spans = _Spans(process)
    for start, end, node in zip(lines.start.tolist(), lines.end.tolist(), lines.node.tolist(), strict=True):
        spans.add(start, end, node)
    return spans.result()


class _Spans:
    """Spans under construction, from stretches of one process that are added in order."""

    def __init__(self, process: ProcessTimes) -> None:
        self._process = process
        self._loop_depth = loop_depth(process)
        self._shown: dict[int, list[int]] = {}
        #: Node and row of each span that has not ended.
        self._open: list[tuple[int, int]] = []
        #: Start, line and depth of each span.
        self._rows: list[tuple[int, int, int]] = []
        #: End of each span, or its end so far.
        self._ends: list[int] = []

    def add(self, start: int, end: int, node: int) -> None:
        """Add a stretch of line `node` and its callers: extend spans that end at `start`, else begin new spans."""
        shown = self._shown.get(node)
        if shown is None:
            shown = self._shown[node] = self._shown_above(node)
        kept = 0
        for (open_node, row), wanted in zip(self._open, shown, strict=False):
            if open_node != wanted or self._ends[row] != start:
                break
            kept += 1
        del self._open[kept:]
        for depth, line in enumerate(shown[kept:], kept):
            self._open.append((line, len(self._rows)))
            self._rows.append((start, line, depth))
            self._ends.append(end)
        for _, row in self._open:
            self._ends[row] = end

    def _shown_above(self, node: int) -> list[int]:
        path = self._process.tree.path(node)
        return [line for line in path[self._loop_depth - 1 :] if is_users(self._process, line)]

    def result(self) -> LineSpans:
        """Return the spans as columns."""
        labels: dict[str, int] = {}
        words = {line: location(self._process, line).words for _, line, _ in self._rows}
        label = [labels.setdefault(words[line], len(labels)) for _, line, _ in self._rows]
        return LineSpans(
            start=np.array([start for start, *_ in self._rows], np.int64),
            end=np.array(self._ends, np.int64),
            label=np.array(label, np.int64),
            depth=np.array([depth for _, _, depth in self._rows], np.int64),
            labels=tuple(labels),
        )
