"""Measure host time per source line over several steps, from a log of trace events."""

from __future__ import annotations

import linecache
import os
import statistics
import sys
import time
from pathlib import Path

from gpudiag.statistics import mean_of
from source_lines.collector import EventLog, collector
from source_lines.log import STEP, LineNode, Walk, replay, work_of
from source_lines.ownership import is_own
from source_lines.records import LineSpans, LineTimes, LineWork, SourceLine

#: Lines below this share of a step are omitted, and a line keeps at most this many callee lines.
_LEAST_SHARE = 0.003
_MOST_CHILDREN = 40
#: Longest text of a source line, in characters.
_MOST_TEXT = 160


class LineRecorder:
    """Record line times of the calling thread, from the end of one step to the end of a later one.

    `step` is called at the end of each step, from the frame that ends it (the optimizer's hook or the loop).

    Args:
        keep_source: False to omit the text of lines.
        loop: False if the frames that call `step` run no loop of the user's, as in a DataLoader's worker.
    """

    def __init__(self, *, keep_source: bool = True, loop: bool = True) -> None:
        self.unavailable = ""
        self._keep_source = keep_source
        self._log = EventLog()
        self._collector = collector(self._log)
        if self._collector is None:
            self.unavailable = "another debugger, tracer or profiler is attached to the program"
        self._loop = loop
        self._started = False
        self._walk: Walk | None = None
        self._epoch_ns = 0

    def step(self) -> None:
        """Note the end of a step; the first call starts recording."""
        if self._collector is None:
            return
        if self._started:
            self._collector.step()
            return
        self._started = True
        self._collector.start(sys._getframe(1) if self._loop else None)  # noqa: SLF001  # the documented way to a caller's frame

    def stop(self) -> None:
        """End recording; `times` and `spans` can be read afterwards."""
        if self._collector is not None and self._started:
            self._collector.stop()
            self._epoch_ns = time.time_ns() - time.perf_counter_ns()
            self._walk = replay(self._log.entries, self._log.stack)

    def times(self) -> LineTimes | None:
        """Return the mean times per step; None if no whole step was recorded."""
        return self._times_of(self._walk, len(self._log.entries))

    def threads(self) -> tuple[LineTimes, ...]:
        """Return the times of the other threads that ran the user's code, each with its lines."""
        ends = [entry for entry in self._log.entries if entry[2] == STEP]
        found = []
        for entries in self._log.others.values():
            walk = replay(sorted([*ends, *entries], key=lambda entry: entry[0]), ())
            times = self._times_of(walk, len(entries))
            if times is not None and times.lines:
                found.append(times)
        return tuple(found)

    def _times_of(self, walk: Walk | None, events: int) -> LineTimes | None:
        if walk is None or self._collector is None or walk.steps == 0:
            return None
        root, steps = walk.root, walk.steps
        whole = sum(root.step_ns.get(step, 0) for step in range(steps))
        return LineTimes(
            by="events" if self._collector.by == "events" else "traced",
            steps=steps,
            step_ms=whole / steps / 1e6,
            events_per_step=events / steps,
            coarse=tuple(sorted({code.co_qualname for code in self._log.coarse})),
            lines=self._children(root, steps, _LEAST_SHARE * whole),
        )

    def spans(self) -> LineSpans | None:
        """Return the line of every instant between the first and the last step's end; None if nothing was recorded."""
        if self._walk is None or not self._walk.spans:
            return None
        nodes = _Nodes(self._keep_source)
        begin, end, position = list[int](), list[int](), list[int]()
        for begin_ns, end_ns, node in self._walk.spans:
            index = nodes.index(node)
            if position and position[-1] == index and end[-1] == begin_ns + self._epoch_ns:
                end[-1] = end_ns + self._epoch_ns
            else:
                begin.append(begin_ns + self._epoch_ns)
                end.append(end_ns + self._epoch_ns)
                position.append(index)
        return LineSpans(
            positions=tuple(nodes.positions),
            parents=tuple(nodes.parents),
            own=tuple(nodes.own),
            begin_ns=tuple(begin),
            end_ns=tuple(end),
            position=tuple(position),
        )

    def _children(self, node: LineNode, steps: int, least_ns: float) -> tuple[SourceLine, ...]:
        sums = {below: sum(below.step_ns.get(step, 0) for step in range(steps)) for below in node.below.values()}
        kept = sorted((below for below in sums if sums[below] >= least_ns), key=lambda below: -sums[below])
        return tuple(self._line(below, steps, least_ns) for below in kept[:_MOST_CHILDREN])

    def _line(self, node: LineNode, steps: int, least_ns: float) -> SourceLine:
        assert node.position is not None  # the root alone has none
        code, number = node.position
        per_step = [node.step_ns.get(step, 0) / 1e6 for step in range(steps)]
        work: LineWork = work_of(node)  # type: ignore[assignment]
        return SourceLine(
            file=shortened(code.co_filename),
            line=number,
            function=code.co_qualname,
            text=_text(code.co_filename, number) if self._keep_source else "",
            own=is_own(code.co_filename),
            work=work,
            ms=statistics.fmean(per_step),
            self_ms=node.self_ns / 1e6 / steps,
            half_width_ms=mean_of(per_step).half_width if steps > 1 else None,
            max_ms=max(per_step),
            steps_with=sum(value > 0 for value in per_step),
            children=self._children(node, steps, least_ns),
        )


class _Nodes:
    """Number the lines that spans refer to."""

    def __init__(self, keep_source: bool) -> None:
        self.positions: list[tuple[str, int, str, str]] = []
        self.parents: list[int] = []
        self.own: list[bool] = []
        self._keep_source = keep_source
        self._known: dict[int, int] = {}

    def index(self, node: LineNode) -> int:
        """Return a line's number; its callers come before it."""
        known = self._known.get(id(node))
        if known is not None:
            return known
        above = node.above
        parent = self.index(above) if above is not None and above.position is not None else -1
        assert node.position is not None  # the root has no span
        code, number = node.position
        text = _text(code.co_filename, number) if self._keep_source else ""
        self.positions.append((shortened(code.co_filename), number, code.co_qualname, text))
        self.parents.append(parent)
        self.own.append(is_own(code.co_filename))
        self._known[id(node)] = len(self.positions) - 1
        return self._known[id(node)]


def _text(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()[:_MOST_TEXT]


def shortened(file: str) -> str:
    """Return a path relative to the working directory if it lies below it."""
    try:
        path = Path(file)
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else os.path.normpath(file)
    except (OSError, ValueError):
        return file
