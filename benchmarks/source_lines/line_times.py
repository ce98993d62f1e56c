"""Measure host time per source line over several steps, from a log of trace events."""

from __future__ import annotations

import linecache
import os
import statistics
import sys
from pathlib import Path

from gpudiag.statistics import mean_of
from source_lines.collector import EventLog, collector
from source_lines.log import LineNode, Walk, replay, work_of
from source_lines.ownership import is_own
from source_lines.records import LineTimes, LineWork, SourceLine

#: Lines below this share of a step are omitted, and a line keeps at most this many callee lines.
_LEAST_SHARE = 0.003
_MOST_CHILDREN = 40
#: Longest text of a source line, in characters.
_MOST_TEXT = 160


class LineRecorder:
    """Record line times of the calling thread, from the end of one step to the end of a later one.

    `step` is called at the end of each step, from the frame that ends it (the optimizer's hook or the loop).
    """

    def __init__(self) -> None:
        self.unavailable = ""
        self._log = EventLog()
        self._collector = collector(self._log)
        if self._collector is None:
            self.unavailable = "another debugger, tracer or profiler is attached to the program"
        self._started = False
        self._walk: Walk | None = None

    def step(self) -> None:
        """Note the end of a step; the first call starts recording."""
        if self._collector is None:
            return
        if self._started:
            self._collector.step()
            return
        self._started = True
        self._collector.start(sys._getframe(1))  # noqa: SLF001  # the documented way to a caller's frame

    def stop(self) -> None:
        """End recording; `times` can be read afterwards."""
        if self._collector is not None and self._started:
            self._collector.stop()
            self._walk = replay(self._log.entries, self._log.stack)

    def times(self) -> LineTimes | None:
        """Return the mean times per step; None if no whole step was recorded."""
        if self._walk is None or self._collector is None or self._walk.steps == 0:
            return None
        root, steps = self._walk.root, self._walk.steps
        whole = sum(root.step_ns.get(step, 0) for step in range(steps))
        return LineTimes(
            by="events" if self._collector.by == "events" else "traced",
            steps=steps,
            step_ms=whole / steps / 1e6,
            events_per_step=len(self._log.entries) / steps,
            coarse=tuple(sorted({code.co_qualname for code in self._log.coarse})),
            lines=self._children(root, steps, _LEAST_SHARE * whole),
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
            file=_shortened(code.co_filename),
            line=number,
            function=code.co_qualname,
            text=_text(code.co_filename, number),
            own=is_own(code.co_filename),
            work=work,
            ms=statistics.fmean(per_step),
            self_ms=node.self_ns / 1e6 / steps,
            half_width_ms=mean_of(per_step).half_width if steps > 1 else None,
            max_ms=max(per_step),
            steps_with=sum(value > 0 for value in per_step),
            children=self._children(node, steps, least_ns),
        )


def _text(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()[:_MOST_TEXT]


def _shortened(file: str) -> str:
    """Return a path relative to the working directory if it lies below it."""
    try:
        path = Path(file)
        return str(path.relative_to(Path.cwd())) if path.is_absolute() else os.path.normpath(file)
    except (OSError, ValueError):
        return file
